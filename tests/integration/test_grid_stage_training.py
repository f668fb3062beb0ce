"""Trainers in pipelines of grids whose ranks are processes that come, go and die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grid_tasks import build_chain_task
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.step.training_loop import TrainingLoop
from sharded_ranks import Act, Outcome, Script, play
from training_ranks import build_spec

torch.set_num_threads(1)

ALL = tuple(range(8))
STEPS = 8
OPTIONS: dict[str, Any] = {"clip_grad_norm": 0.5, "ema": {"decay": 0.9}}


@pytest.fixture(scope="module")
def alone() -> dict[int, float]:
    """Step -> loss of one process, up to rounding; of an epoch's last batch of 5 samples, too."""
    loop = TrainingLoop(build_chain_task(), build_spec(**OPTIONS))
    return {step: pytest.approx(loop.step().loss, rel=1e-10) for step in range(1, STEPS + 1)}


def losses_of(outcomes: list[Outcome | None]) -> dict[int, float]:
    found: dict[int, float] = {}
    for outcome in outcomes:
        for step, loss in outcome.losses if outcome else ():
            assert found.setdefault(step, loss) == pytest.approx(loss, rel=1e-10)
    return found


def train(folder: Path, *acts: Act, grid: dict[str, int], **options: Any) -> list[Outcome | None]:
    parallel = {"tensor": grid, "pipeline": {"stages": 2, "schedule": "1f1b"}}
    spec = {**OPTIONS, "parallel": parallel, "checkpoint": {"hot_every_steps": 2}}
    return play(Script(acts, str(folder), task=build_chain_task, spec=spec, measured=False, **options))


def test_ranks_come_and_go_with_the_losses_of_an_undisturbed_run(tmp_path: Path, alone: dict[int, float]) -> None:
    """Two stages of squares, what is laid out otherwise on three ranks, one stage and two spare ranks, and both
    stages again. What is left of it is the checkpoint of a replicated trainer."""
    acts = (Act(ALL, until=2), Act((0, 1, 2), until=4), Act((1, 0, 2, 3, 4, 5), until=6), Act(ALL, until=7))
    outcomes = train(tmp_path, *acts, grid={"square": 2}, finish=True)
    assert losses_of(outcomes) == {step: alone[step] for step in range(1, 8)}
    first = outcomes[0]
    assert first is not None
    assert first.origins == ["scratch", "survivor", "survivor", "survivor"]
    assert first.redone == [0, 0, 0, 0]
    checkpoints, loop = (
        DurableCheckpoints(tmp_path, keep=2),
        TrainingLoop(build_chain_task(), build_spec(**OPTIONS)),
    )
    state, newest = loop.state.state_dict(), checkpoints.newest()
    assert newest is not None
    checkpoints.load(newest, state)
    loop.state.load_state_dict(state)
    assert (loop.step_count, loop.step().loss) == (7, alone[8])


def test_a_replicated_trainers_checkpoint_is_taken_up_and_a_lost_rank_is_replaced_by_its_likes(
    tmp_path: Path, alone: dict[int, float]
) -> None:
    """Two pipelines of two stages of two ranks: what a killed rank had, another pipeline's rank has."""
    loop = TrainingLoop(build_chain_task(), build_spec(**OPTIONS))
    for _ in range(2):
        loop.step()
    DurableCheckpoints(tmp_path, keep=2).save(loop.state.state_dict(), 2)
    acts = (Act(ALL, until=5, dies=(2,)), Act((0, 1, 3, 6, 4), until=STEPS))
    outcomes = train(tmp_path, *acts, grid={"line": 2})
    assert outcomes[2] is None
    assert losses_of(outcomes) == {step: alone[step] for step in range(3, STEPS + 1)}
    survivor = outcomes[0]
    assert survivor is not None
    assert survivor.origins == ["checkpoint", "survivor"]
    assert survivor.redone[1] == 0


def test_without_likes_they_come_from_a_neighbours_copy_and_rank_0_evaluates(
    tmp_path: Path, alone: dict[int, float]
) -> None:
    acts = (Act((0, 1, 2, 3), until=5, dies=(3,)), Act((0, 1, 2), until=7))
    outcomes = train(tmp_path, *acts, grid={"line": 2})
    assert losses_of(outcomes) == {step: alone[step] for step in range(1, 8)}
    survivor, loop = outcomes[0], TrainingLoop(build_chain_task(), build_spec(**OPTIONS))
    assert survivor is not None
    assert survivor.origins == ["scratch", "memory"]
    for _ in range(7):
        loop.step()
    assert survivor.metrics == {7: pytest.approx(loop.evaluations.run(), rel=1e-9)}
