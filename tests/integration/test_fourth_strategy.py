"""A strategy that Oakum does not have, registered from a folder of its own, trains as Oakum's own do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oakum_worker import strategy_table
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.step.training_loop import TrainingLoop
from running_service import TASKS, RunningService, small_spec
from sharded_ranks import Act, Outcome, Script, play
from star.engine import StarEngine
from star.task import NAME, points
from total_tasks import build_token_task, token_mean
from training_ranks import build_spec, step_together
from whole_scenario import ends_as_one_process_does, train_through_changes

torch.set_num_threads(1)

STEPS = 14
"""Of two epochs of 53 samples in batches of 8."""


def losses_of(outcomes: list[Outcome | None]) -> dict[int, float]:
    """Step -> loss, of which each rank has found the same."""
    found: dict[int, float] = {}
    for outcome in outcomes:
        for step, loss in outcome.losses if outcome else ():
            assert found.setdefault(step, loss) == loss
    return found


def losses_of_one_process() -> dict[int, float]:
    """By Oakum's own strategy for a process alone."""
    loop = TrainingLoop(points(), build_spec())
    assert isinstance(loop.assembly.engine, GradientReducer)
    return {step: pytest.approx(loop.step().loss, rel=1e-12) for step in range(1, STEPS + 1)}


def test_it_grows_shrinks_and_loses_ranks_with_the_losses_of_one_process(tmp_path: Path) -> None:
    acts = (
        Act((2,), until=2),
        Act((0, 1, 2), until=5),
        Act((2, 0), until=7),
        Act((0, 2, 3, 4), until=9, dies=(3,)),
        Act((0, 2, 4), until=11, dies=(0,)),
        Act((4, 2), until=STEPS),
    )
    spec = {"name": NAME, "parallel": {}}
    outcomes = play(Script(acts, str(tmp_path), task=points, spec=spec))
    assert [number for number, outcome in enumerate(outcomes) if outcome is None] == [0, 3]
    assert losses_of(outcomes) == losses_of_one_process()
    last = outcomes[2]
    assert last is not None
    assert last.origins == ["scratch", *["survivor"] * 5]


def test_all_its_ranks_send_to_the_centre_and_it_to_all_of_them() -> None:
    loops = [TrainingLoop(points(), build_spec(name=NAME, micro_batch=2)) for _ in range(3)]
    assert step_together(loops, 4) == list(losses_of_one_process().values())[:4]
    engines = [loop.assembly.engine for loop in loops]
    assert [engine.messages for engine in engines if isinstance(engine, StarEngine)] == [8, 4, 4]


def test_a_mean_over_tokens_is_that_of_one_process() -> None:
    loops = [TrainingLoop(build_token_task(), build_spec(name=NAME)) for _ in range(3)]
    alone = TrainingLoop(build_token_task(loss=token_mean), build_spec())
    assert step_together(loops, 5) == pytest.approx([alone.step().loss for _ in range(5)], rel=1e-12)


def test_no_other_trainer_gets_it() -> None:
    assert strategy_table.strategy_of(build_spec(name=NAME)).name == NAME
    specs = {
        "replicated": build_spec(),
        "sharded": build_spec(parallel={"data": "sharded"}),
        "pipelined": build_spec(parallel={"pipeline": {}}),
    }
    assert {name: strategy_table.strategy_of(spec).name for name, spec in specs.items()} == {
        name: name for name in specs
    }


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="there is a strategy 'star' already: choose another name"):
        strategy_table.register(strategy_table.strategy_of(build_spec(name=NAME)))


def test_through_the_real_service_it_is_rescaled_and_killed_and_ends_as_one_process_does(
    shared_service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TASKS)  # the task alone is built here, where no agent has its folders
    gate = tmp_path / "gate"
    spec = small_spec(
        NAME,
        workdir=str(TASKS.parent),
        entrypoint="star.task:paced",
        epochs=10,
        max_nodes=3,
        arguments={"gate": str(gate), "step_s": 2.0},
    )
    found = train_through_changes(shared_service, spec, gate)
    alone = ends_as_one_process_does(found, spec.model_copy(update={"name": "alone"}))
    assert isinstance(alone.assembly.engine, GradientReducer)
