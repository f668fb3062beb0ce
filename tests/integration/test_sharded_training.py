"""Sharded training whose ranks come, go and die, against one process that nobody disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cells import each
from chained_task import build_chained_task, build_idle_task
from gathering_tasks import build_gathering_task, contrastive_loss_alone
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.parallel.gradient_look import describe_lacking_gradients
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from sharded_ranks import Act, Outcome, Script, play
from tied_task import build_tied_task
from total_tasks import build_token_task, token_mean
from training_ranks import Points, build_spec, build_task, mean_squared_error

STEPS = 14
"""Of two epochs of 53 samples in batches of 8."""


class RowScaled(torch.optim.Optimizer):
    """Scales each row's step by the row's mean squared gradient, a state that is not shaped like its parameter."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if parameter.ndim > 1 and not state:
                    state["rows"] = gradient.new_zeros((parameter.shape[0], 1))
                if state:
                    state["rows"].mul_(0.9).add_(gradient.square().mean(1, keepdim=True))
                    gradient = gradient / (state["rows"].sqrt() + 0.1)
                parameter.sub_(gradient * group["lr"])


def build_row_scaled_task() -> Task:
    """A task with this optimizer."""
    task = build_task()
    task.optimizer, task.scheduler = RowScaled(task.model.parameters()), None
    return task


def undisturbed(task: Callable[[], Task] = build_task) -> dict[int, float]:
    loop = TrainingLoop(task(), build_spec())
    return {step: pytest.approx(loop.step().loss, rel=1e-9) for step in range(1, STEPS + 1)}


def losses_of(outcomes: list[Outcome | None]) -> dict[int, float]:
    """Step -> loss, of which each rank has found the same, however often it took the step."""
    found: dict[int, float] = {}
    for outcome in outcomes:
        for step, loss in outcome.losses if outcome else ():
            assert found.setdefault(step, loss) == pytest.approx(loss, rel=1e-9)
    return found


def survivor(outcomes: list[Outcome | None]) -> Outcome:
    """The first process of the script that was not killed."""
    return next(outcome for outcome in outcomes if outcome is not None)


def test_growing_and_shrinking_changes_no_loss(tmp_path: Path) -> None:
    acts = (
        Act((0, 1, 2), until=3),
        Act((1, 2), until=6),
        Act((1, 2, 3), until=8),
        Act((3,), until=10),
        Act((3, 0, 2), until=STEPS),
    )
    outcomes = play(Script(acts, str(tmp_path)))
    assert losses_of(outcomes) == undisturbed()
    assert survivor(outcomes[1:]).origins == ["scratch", "survivor", "survivor"]


def test_the_next_durable_checkpoint_is_due_by_the_age_of_the_last_one_whoever_is_rank_0(tmp_path: Path) -> None:
    """Process 1 comes an hour after nothing was made durable any more, and is then left alone."""
    acts = (Act((0,), until=2), Act((0, 1), until=4), Act((1,), until=6))
    outcomes = play(Script(acts, str(tmp_path), aged_s=3600.0))
    assert [outcome.due for outcome in outcomes if outcome is not None] == [[False, True], [True, True]]


def test_a_mean_over_tokens_is_that_of_one_process_at_any_number_of_ranks(tmp_path: Path) -> None:
    acts = (Act((0, 1), until=3), Act((2, 0, 1), until=9), Act((1,), until=11), Act((1, 0), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), task=build_token_task, spec={"micro_batch": 1}))
    alone = TrainingLoop(build_token_task(loss=token_mean), build_spec())
    expected = {step: pytest.approx(alone.step().loss, rel=1e-12) for step in range(1, STEPS + 1)}
    assert losses_of(outcomes) == expected


def test_a_contrastive_loss_is_that_of_one_process_with_ranks_that_come_go_and_die(tmp_path: Path) -> None:
    """One is killed before it gathers: the others stand in the collective then."""
    acts = (Act((0, 1, 2), until=3), Act((2, 0, 1, 3), until=8, dies=(1,)), Act((3, 0), until=STEPS))
    hot = {"checkpoint": {"hot_every_steps": 2}}
    outcomes = play(Script(acts, str(tmp_path), task=build_gathering_task, spec=hot))
    alone = TrainingLoop(build_gathering_task(contrastive_loss_alone, gathers=False), build_spec())
    expected = {step: pytest.approx(alone.step().loss, rel=1e-12) for step in range(1, STEPS + 1)}
    assert losses_of(outcomes) == expected


def test_tied_weights_groups_clipping_and_micro_batches_change_no_loss(tmp_path: Path) -> None:
    acts = (Act((0, 1), until=3), Act((2, 0, 1), until=7), Act((1,), until=9), Act((1, 0), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), task=build_tied_task, spec={"micro_batch": 3}))
    assert losses_of(outcomes) == undisturbed(build_tied_task)


def test_a_chain_as_loss_and_in_the_evaluation_follows_the_model_through_generations(tmp_path: Path) -> None:
    loop = TrainingLoop(build_chained_task(), build_spec())
    losses, errors = {}, {}
    for step in range(1, STEPS + 1):
        losses[step] = pytest.approx(loop.step().loss, rel=1e-9)
        if loop.evaluations.is_due:
            errors[step] = {"error": pytest.approx(loop.evaluations.run()["error"], rel=1e-9)}
    acts = (Act((0, 1), until=3), Act((1,), until=5), Act((1, 0), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), task=build_chained_task))
    assert losses_of(outcomes) == losses
    assert [outcome.metrics for outcome in outcomes if outcome is not None] == [errors, errors]


@each(
    "parallel",
    [{"data": "sharded"}, {"pipeline": {"stages": 2, "schedule": "zero-bubble"}}, {"tensor": {"line": 2}}],
)
def test_ranks_name_what_got_no_gradient_of_what_they_hold(
    tmp_path_factory: pytest.TempPathFactory, parallel: dict[str, Any]
) -> None:
    folder = str(tmp_path_factory.mktemp("ranks"))
    script = Script((Act((0, 1), until=2),), folder, task=build_idle_task, spec={"parallel": parallel})
    idle = [f"{layer}.idle.{name}" for layer in (0, 2) for name in ("weight", "bias")]
    held = [idle[:2], idle[2:]] if "pipeline" in parallel else [idle, idle]
    told = [outcome.told for outcome in play(script) if outcome is not None]
    assert told == [[describe_lacking_gradients(names)] for names in held]


def test_an_optimizer_with_state_of_its_own_shapes_follows_ranks_that_trade_places(tmp_path: Path) -> None:
    acts = (Act((0, 1), until=3), Act((1, 0), until=6), Act((1,), until=8), Act((1, 0), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), task=build_row_scaled_task, awaits_ends=True))
    assert losses_of(outcomes) == undisturbed(build_row_scaled_task)


class Scalars:
    """Four numbers, of which one is much larger than the others."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([1024.0 if index == 0 else 4.0], dtype=torch.bfloat16)


def build_half_task() -> Task:
    model = nn.Linear(1, 4, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1 / 64)
    return Task(model=model, dataset=Scalars(), loss=lambda m, batch: m(batch).sum(1).mean(), optimizer=optimizer)


def test_gradients_in_half_precision_are_summed_over_ranks_without_rounding_in_between(tmp_path: Path) -> None:
    script = Script((Act((0, 1, 2, 3), until=2),), str(tmp_path), task=build_half_task, spec={"global_batch": 4})
    # The mean of 1024, 4, 4 and 4 is 259, in bfloat16 260. Weights of 1 become 1 - 260 / 64.
    assert losses_of(play(script)) == {1: 4 * 259, 2: 4 * 259 * (1 - 260 / 64)}


def test_the_loss_of_a_rank_goes_back_to_the_copy_in_memory_and_changes_no_loss(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2), until=8, dies=(2,)), Act((0, 1), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), spec={"checkpoint": {"hot_every_steps": 3}}))
    assert outcomes[2] is None
    assert losses_of(outcomes) == undisturbed()
    first = survivor(outcomes)
    assert first.origins == ["scratch", "memory"]
    assert first.redone == [0, 2]
    assert first.warnings[0].startswith("steps 7 to 8 are computed again")


def test_neighbours_lost_together_go_back_to_the_durable_checkpoint(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2), until=8, dies=(1, 2)), Act((0,), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), durable_at=4, spec={"checkpoint": {"hot_every_steps": 3}}))
    assert losses_of(outcomes) == undisturbed()
    assert (survivor(outcomes).origins, survivor(outcomes).redone) == (["scratch", "checkpoint"], [0, 4])


def test_with_nothing_left_training_begins_anew(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2), until=4, dies=(0, 1)), Act((2,), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path)))
    assert losses_of(outcomes) == undisturbed()
    assert (survivor(outcomes).origins, survivor(outcomes).redone) == (["scratch", "scratch"], [0, 4])


def test_a_newcomer_lost_in_its_first_step_costs_nothing_that_the_others_had(tmp_path: Path) -> None:
    acts = (Act((0, 1), until=4), Act((0, 1, 2), until=4, dies=(2,)), Act((0, 1), until=STEPS))
    outcomes = play(Script(acts, str(tmp_path), spec={"checkpoint": {"hot_every_steps": 2}}))
    assert losses_of(outcomes) == undisturbed()
    assert survivor(outcomes).redone in ([0, 0, 0], [0, 0, 2])


def written_by(acts: tuple[Act, ...], folder: Path, **changes: Any) -> dict[int, float]:
    """The losses of a script that ends with a durable checkpoint."""
    return losses_of(play(Script(acts, str(folder), finish=True, **changes)))


def test_a_checkpoint_of_three_goes_on_with_two_with_one_and_without_sharding(tmp_path: Path) -> None:
    found = written_by((Act((0, 1, 2), until=5),), tmp_path, task=build_tied_task)
    for name in ("two", "one", "none"):
        shutil.copytree(tmp_path / "step-5", tmp_path / name / "step-5")
    expected = undisturbed(build_tied_task)

    for name, members in (("two", (0, 1)), ("one", (0,))):
        outcomes = play(Script((Act(members, until=STEPS),), str(tmp_path / name), task=build_tied_task))
        assert survivor(outcomes).origins == ["checkpoint"]
        assert found | losses_of(outcomes) == expected
    loop, checkpoints = TrainingLoop(build_tied_task(), build_spec()), DurableCheckpoints(tmp_path / "none", 1)
    state = loop.state.state_dict()
    newest = checkpoints.newest()
    assert newest is not None
    checkpoints.load(newest, state)
    loop.state.load_state_dict(state)
    assert found | {step: loop.step().loss for step in range(6, STEPS + 1)} == expected


def test_a_checkpoint_that_was_not_sharded_goes_on_with_two_ranks(tmp_path: Path) -> None:
    loop = TrainingLoop(build_tied_task(), build_spec())
    found = {step: loop.step().loss for step in range(1, 6)}
    DurableCheckpoints(tmp_path, keep=1).save(loop.state.state_dict(), loop.step_count)
    outcomes = play(Script((Act((0, 1), until=STEPS),), str(tmp_path), task=build_tied_task))
    assert survivor(outcomes).origins == ["checkpoint"]
    assert found | losses_of(outcomes) == undisturbed(build_tied_task)


def test_a_damaged_share_of_the_newest_checkpoint_lets_the_one_before_count(tmp_path: Path) -> None:
    found = written_by((Act((0, 1), until=7),), tmp_path, durable_at=4)
    assert {path.name for path in tmp_path.iterdir()} == {"step-4", "step-7"}
    share = tmp_path / "step-7" / "__1_0.distcp"
    share.write_bytes(share.read_bytes()[:-1] + b"?")
    outcomes = play(Script((Act((0, 1), until=STEPS),), str(tmp_path)))
    assert survivor(outcomes).origins == ["checkpoint"]
    assert min(losses_of(outcomes)) == 5
    assert found | losses_of(outcomes) == undisturbed()
    (warning,) = survivor(outcomes).warnings
    assert warning.startswith("checkpoint of step 7 is not usable: ")


def test_when_all_leave_at_once_the_state_is_durable(tmp_path: Path) -> None:
    found = losses_of(play(Script((Act((0, 1), until=6),), str(tmp_path))))
    assert [path.name for path in tmp_path.iterdir()] == ["step-6"]
    outcomes = play(Script((Act((0, 1), until=STEPS),), str(tmp_path)))
    assert survivor(outcomes).origins == ["checkpoint"]
    assert found | losses_of(outcomes) == undisturbed()


class Wide(nn.Module):
    """48 MiB of parameters, in 6 blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 1024)
        self.blocks = nn.ModuleList([nn.Linear(1024, 2048) for _ in range(6)])
        self.last = nn.Linear(1024, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))[:, :1024]
        return self.last(hidden)


def build_wide_task() -> Task:
    torch.manual_seed(0)
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters())
    return Task(model=model, dataset=Points(torch.float32), loss=mean_squared_error, optimizer=optimizer)


def test_no_rank_ever_has_memory_for_the_whole_state_when_it_is_dealt_anew(tmp_path: Path) -> None:
    state_bytes = 3 * sum(parameter.nbytes for parameter in build_wide_task().model.parameters())
    acts = (Act((0, 1, 2, 3), until=1), Act((0, 1), until=2), Act((0, 1, 2, 3), until=3))
    first = survivor(play(Script(acts, str(tmp_path), task=build_wide_task, afresh=True)))
    assert max(first.peaks_bytes) < 0.9 * state_bytes
