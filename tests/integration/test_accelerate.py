"""A loop with an `Accelerator`: what it promises beyond what `test_adapters` shows of every library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from adapters import ACCELERATE, BATCH, SEED, STEPS_PER_EPOCH, spec
from oakum_worker.errors import SessionError
from oakum_worker.gathering import gather_batch
from oakum_worker.randomness.sample_randomness import present_samples
from oakum_worker.session.hosts import RankHost
from oakum_worker.session.scripts import run_script
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import turns_alone
from session_ranks import Plan, Stage
from training_ranks import Points

pytestmark = [pytest.mark.needs("hugging-face"), pytest.mark.usefixtures("states_of_threads")]


BREAKS = """
import torch
from torch.nn.functional import mse_loss
from oakum.accelerate import Accelerator
from training_ranks import Points

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(5, 2).double()
loader = torch.utils.data.DataLoader(Points(), batch_size=9, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in accelerator.epochs():
    for inputs, targets in loader:
        accelerator.backward(mse_loss(model(inputs), targets))
        optimizer.step()
    if epoch == 1:
        break
"""


def _prepared(**changes: Any) -> Any:
    from oakum.accelerate import Accelerator

    accelerator = Accelerator(cpu=True, epochs=1)
    model = nn.Linear(5, 2).double()
    loader = DataLoader(Points(), **({"batch_size": 8, "shuffle": True} | changes))
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)


def test_an_epoch_may_not_be_left_in_its_middle() -> None:
    accelerator, model, optimizer, loader = _prepared()
    epochs = accelerator.epochs()
    assert next(epochs) == 0
    inputs, targets = next(iter(loader))
    accelerator.backward(mse_loss(model(inputs), targets))
    optimizer.step()
    with pytest.raises(SessionError, match="left in the middle of epoch 0"):
        next(epochs)


def test_a_script_that_leaves_its_loop_ends_training_when_it_ends(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(BREAKS, encoding="utf-8")
    left: list[TrainingLoop] = []

    def begin(loop: TrainingLoop) -> Any:
        left.append(loop)
        return turns_alone(loop)

    run_script(spec(workdir=str(tmp_path)), RankHost(spec(), begin, lambda: None))
    assert left[0].finished
    assert left[0].progress.epoch == 2


def test_what_is_for_the_main_process_runs_on_the_first_rank_alone(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Where the first rank leaves, the next one opens a run of its own."""
    from accelerate.tracking import GeneralTracker

    from oakum.accelerate import Accelerator

    ACCELERATE.prepare(request)
    runs: dict[str, list[Any]] = {}
    calls: list[tuple[int, str]] = []

    class Tracker(GeneralTracker):  # type: ignore[misc]
        requires_logging_directory = False
        name = "own"
        tracker = None

        def __init__(self, rank: str) -> None:
            super().__init__()
            self.rank = rank

        def start(self) -> None:
            runs[self.rank] = []

        def store_init_configuration(self, values: Any) -> None:
            runs[self.rank].append(values)

        def log(self, values: Any, step: int | None = None, **_: Any) -> None:
            runs[self.rank].append(step)

    def script(rank: Any) -> None:
        accelerator = Accelerator(cpu=True, epochs=2, seed=SEED, log_with=Tracker(rank.name))
        accelerator.init_trackers("digits", {"lr": 0.1})
        accelerator.log({"begins": 1}, step=0)
        with pytest.raises(SessionError, match="get_tracker before the first epoch"):
            accelerator.get_tracker("own")
        net = nn.Linear(5, 2).double()
        loader = DataLoader(Points(), batch_size=BATCH, shuffle=True)
        model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), loader)
        note = accelerator.on_main_process(lambda step: calls.append((step, rank.name)))
        for _ in accelerator.epochs():
            for inputs, targets in loader:
                accelerator.backward(mse_loss(model(inputs), targets))
                optimizer.step()
                steps = accelerator._loop.open.steps
                accelerator.log({"loss": 1.0}, step=steps)
                note(steps)
                accelerator.save(steps, tmp_path / f"{steps}-{rank.name}")
        accelerator.end_training()

    steps = 2 * STEPS_PER_EPOCH
    Plan([Stage(("a", "b"), 3), Stage(("b", "c"))], spec(epochs=2), script).run()
    assert runs == {"a": [{"lr": 0.1}, 0, 1, 2, 3], "b": [{"lr": 0.1}, 0, *range(4, steps + 1)]}
    assert calls == [(step, "a" if step <= 3 else "b") for step in range(1, steps + 1)]
    assert len(list(tmp_path.iterdir())) == steps


def test_what_cannot_be_kept_is_refused() -> None:
    from oakum.accelerate import Accelerator

    accelerator, model, _, loader = _prepared()
    for call in (accelerator.save_state, accelerator.load_state):
        with pytest.raises(SessionError, match="leave the call out"):
            call("folder")
    with pytest.raises(SessionError, match="training has not begun"):
        next(iter(loader))
    with pytest.raises(SessionError, match="a second optimizer"):
        accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SessionError, match="drop_last"):
        _prepared(drop_last=True)
    with pytest.raises(SessionError, match="no data loader that shuffles"):
        next(_prepared(shuffle=False)[0].epochs())
    with pytest.raises(SessionError, match="no model or no optimizer"):
        next(Accelerator(cpu=True, epochs=1).epochs())


def test_an_error_within_an_accumulated_batch_leaves_nothing_of_it_behind() -> None:
    """What is gathered and drawn afterwards is no sample's of that batch."""

    from oakum.accelerate import Accelerator

    def train() -> None:
        accelerator = Accelerator(cpu=True, epochs=1, gradient_accumulation_steps=2)
        plain = nn.Linear(5, 2).double()
        own, data = torch.optim.SGD(plain.parameters(), lr=0.1), DataLoader(Points(), 4, shuffle=True)
        made: Any = accelerator.prepare(plain, own, data)
        model, _, loader = made
        for _ in accelerator.epochs():
            for inputs, targets in loader:
                accelerator.backward(mse_loss(model(inputs), targets))
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train()
    values = torch.ones(50, 2)
    assert gather_batch(values) is values
    assert present_samples() is None
