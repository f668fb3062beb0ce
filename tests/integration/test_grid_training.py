"""Tensor-parallel trainers whose ranks are processes that come, go and die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grid_tasks import build_evaluated_words_task, build_words_task
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.step.training_loop import TrainingLoop
from sharded_ranks import Act, Outcome, Script, play
from training_ranks import build_spec

torch.set_num_threads(1)

ALL, SIX = tuple(range(8)), tuple(range(6))
STEPS = 9
OPTIONS: dict[str, Any] = {"clip_grad_norm": 0.5, "ema": {"decay": 0.9}}


def grid(**options: Any) -> dict[str, Any]:
    return {**OPTIONS, "parallel": {"tensor": options}, "checkpoint": {"hot_every_steps": 2}}


@pytest.fixture(scope="module")
def alone() -> dict[int, float]:
    """Step -> loss of one process, up to rounding; of an epoch's last batch of 5 samples, too."""
    loop = TrainingLoop(build_words_task(), build_spec(**OPTIONS))
    return {step: pytest.approx(loop.step().loss, rel=1e-11) for step in range(1, STEPS + 1)}


def losses_of(outcomes: list[Outcome | None]) -> dict[int, float]:
    found: dict[int, float] = {}
    for outcome in outcomes:
        for step, loss in outcome.losses if outcome else ():
            assert found.setdefault(step, loss) == pytest.approx(loss, rel=1e-11)
    return found


def train(folder: Path, *acts: Act, **options: Any) -> list[Outcome | None]:
    spec = options.pop("spec")
    return play(Script(acts, str(folder), task=build_words_task, spec=spec, measured=False, **options))


def test_eight_ranks_six_and_eight_again_have_the_losses_of_an_undisturbed_run(
    tmp_path: Path, alone: dict[int, float]
) -> None:
    """A cube, what is laid out otherwise since it is no cube, and a cube. They begin from the checkpoint of a
    replicated trainer, and leave one that a replicated trainer goes on from."""
    write_checkpoint(tmp_path, after_steps=2)
    acts = (Act(ALL, until=4), Act(SIX, until=6), Act(ALL, until=8))
    outcomes = train(tmp_path, *acts, spec=grid(cube=2), finish=True)
    assert losses_of(outcomes) == {step: alone[step] for step in range(3, 9)}
    first, last = outcomes[0], outcomes[7]
    assert first is not None
    assert last is not None
    assert first.origins == ["checkpoint", "survivor", "survivor"]
    assert last.origins == ["checkpoint", "survivor"]
    assert first.redone[1:] == [0, 0]
    loop = begun_from_checkpoint(tmp_path)
    assert (loop.step_count, loop.step().loss) == (8, alone[9])


def write_checkpoint(folder: Path, after_steps: int) -> None:
    """Have a replicated trainer write a durable checkpoint."""
    loop = TrainingLoop(build_words_task(), build_spec(**OPTIONS))
    for _ in range(after_steps):
        loop.step()
    DurableCheckpoints(folder, keep=2).save(loop.state.state_dict(), after_steps)


def begun_from_checkpoint(folder: Path) -> TrainingLoop:
    """A replicated trainer with the state of the newest checkpoint."""
    checkpoints = DurableCheckpoints(folder, keep=2)
    loop = TrainingLoop(build_words_task(), build_spec(**OPTIONS))
    state, newest = loop.state.state_dict(), checkpoints.newest()
    assert newest is not None
    checkpoints.load(newest, state)
    loop.state.load_state_dict(state)
    return loop


@pytest.mark.soak
def test_grids_of_other_shapes_take_over_from_each_other_with_ranks_to_spare(
    tmp_path: Path, alone: dict[int, float]
) -> None:
    """A square of four, a square and a spare rank, two ranks for which there is no square, and a square."""
    acts = (
        Act((0, 1, 2, 3), until=2),
        Act((4, 1, 2, 3, 0), until=4),
        Act((1, 0), until=6),
        Act((2, 0, 1, 3), until=STEPS),
    )
    outcomes = train(tmp_path, *acts, spec=grid(square=2))
    assert losses_of(outcomes) == alone


def test_shards_give_way_to_a_rank_alone_and_come_back_as_two_replicas(
    tmp_path: Path, alone: dict[int, float]
) -> None:
    acts = (Act((0, 1, 2), until=3), Act((1,), until=5), Act((3, 1, 0, 2), until=STEPS))
    outcomes = train(tmp_path, *acts, spec=grid(shards=2))
    assert losses_of(outcomes) == alone


def test_a_lost_ranks_blocks_are_those_of_another_grid(tmp_path: Path, alone: dict[int, float]) -> None:
    acts = (Act((0, 1, 2, 3), until=5, dies=(1,)), Act((0, 2, 3), until=STEPS))
    outcomes = train(tmp_path, *acts, spec=grid(line=2))
    assert outcomes[1] is None
    assert losses_of(outcomes) == alone
    survivor = outcomes[0]
    assert survivor is not None
    assert survivor.origins == ["scratch", "survivor"]
    assert survivor.redone == [0, 0]


def test_without_another_grid_they_come_from_a_neighbours_copy(tmp_path: Path, alone: dict[int, float]) -> None:
    acts = (Act((0, 1), until=5, dies=(0,)), Act((1,), until=7), Act((1, 2), until=STEPS))
    outcomes = train(tmp_path, *acts, spec=grid(line=2))
    assert outcomes[0] is None
    assert losses_of(outcomes) == alone
    survivor = outcomes[1]
    assert survivor is not None
    assert survivor.origins == ["scratch", "memory", "survivor"]
    assert survivor.redone[1] in (1, 3)
    assert survivor.warnings


def test_where_both_are_lost_they_come_from_the_durable_checkpoint(
    tmp_path: Path, alone: dict[int, float]
) -> None:
    acts = (Act((0, 1, 2, 3), until=5, dies=(0, 1)), Act((2, 3, 4, 5), until=STEPS))
    outcomes = train(tmp_path, *acts, spec=grid(square=2), durable_at=3)
    assert outcomes[:2] == [None, None]
    assert losses_of(outcomes) == alone
    survivor = outcomes[2]
    assert survivor is not None
    assert survivor.origins == ["scratch", "checkpoint"]


def test_the_whole_model_is_evaluated_on_rank_0(tmp_path: Path) -> None:
    loop = TrainingLoop(build_evaluated_words_task(), build_spec(**OPTIONS))
    for _ in range(7):
        loop.step()
    script = Script((Act((0, 1, 2, 3, 4), until=7),), str(tmp_path), task=build_evaluated_words_task)
    outcomes = play(Script(script.acts, script.folder, script.task, grid(square=2), measured=False))
    found = [outcome.metrics for outcome in outcomes if outcome is not None]
    assert found[1:] == [{}] * 4
    assert found[0] == {7: pytest.approx(loop.evaluations.run(), rel=1e-9)}
