"""A sharded trainer of one rank, which is told to go."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.checkpoint.durable import Checkpoint, DurableCheckpoints
from oakum_worker.keeping.split import SplitStateKeeper
from oakum_worker.parallel.sharded import ShardedEngine
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import build_loop, build_spec, build_task, mean_squared_error

ALONE = Generation(number=1, members=(Member(fragment="f", node="n", ranks=(Endpoint(host="h", port=1),)),))


class Alone:
    """A process in which nothing happens but that the rank may be told to close."""

    def __init__(self) -> None:
        self.told_to_close = False
        self.warnings: list[str] = []

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        return None

    def closing(self) -> bool:
        return self.told_to_close

    def initial_values(self) -> dict[str, torch.Tensor]:
        return dict(build_task().model.state_dict())

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def build(folder: Path, **fields: Any) -> tuple[TrainingLoop, SplitStateKeeper, Alone]:
    spec, around = build_spec(parallel={"data": "sharded"}, **fields), Alone()
    loop = TrainingLoop(build_task(), spec)
    state, engine = loop.assembly.state, loop.assembly.engine
    assert state is not None
    assert isinstance(engine, ShardedEngine)
    checkpoints = DurableCheckpoints(folder, keep=2)
    return (
        loop,
        SplitStateKeeper(loop.state, state, engine, spec, checkpoints, around),
        around,
    )


def expected_losses(num_steps: int) -> list[float]:
    loop = build_loop()
    return [loop.step().loss for _ in range(num_steps)]


def test_a_rank_alone_trains_as_an_unsharded_one(tmp_path: Path) -> None:
    loop, keeper, _ = build(tmp_path)
    assert keeper.begin(ALONE, 0) == "scratch"
    assert [loop.step().loss for _ in range(5)] == pytest.approx(expected_losses(5), rel=1e-9)


def test_a_rank_that_has_not_begun_leaves_at_once_and_saves_nothing(tmp_path: Path) -> None:
    _, keeper, _ = build(tmp_path)
    assert keeper.close_at_once(save=True)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_evaluates_other_weights_than_its_own_saves_at_the_boundary(tmp_path: Path) -> None:
    loop, keeper, _ = build(tmp_path, ema={"decay": 0.5})
    keeper.begin(ALONE, 0)
    for _ in range(2):
        loop.step()
    closed = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        closed.append(keeper.close_at_once(save=True))
        return {}

    loop.task.evaluate = evaluate
    loop.evaluations.run()

    assert closed == [False]
    assert list(tmp_path.iterdir()) == []


def test_a_rank_alone_saves_its_last_finished_step_in_the_middle_of_the_next(tmp_path: Path) -> None:
    loop, keeper, _ = build(tmp_path)
    keeper.begin(ALONE, 0)
    losses = [loop.step().loss for _ in range(3)]
    closed = []

    def close_in_another_thread(model: nn.Module, batch: Any) -> torch.Tensor:
        thread = threading.Thread(target=lambda: closed.append(keeper.close_at_once(save=True)))
        thread.start()
        thread.join()
        return mean_squared_error(model, batch)

    loop.task.loss = close_in_another_thread
    loop.step()
    assert closed == [True]
    assert DurableCheckpoints(tmp_path, keep=1).newest() == Checkpoint(tmp_path / "step-3", 3)

    successor, keeper, _ = build(tmp_path)
    assert keeper.begin(ALONE, 0) == "checkpoint"
    losses += [successor.step().loss for _ in range(2)]
    assert losses == pytest.approx(expected_losses(5), rel=1e-9)


def test_a_rank_told_to_close_saves_at_the_next_boundary_and_only_once(tmp_path: Path) -> None:
    loop, keeper, around = build(tmp_path)
    keeper.begin(ALONE, 0)
    loop.step()
    assert not keeper.after_step(durable=False)
    around.told_to_close = True
    loop.step()
    assert keeper.after_step(durable=False)
    written = (tmp_path / "step-2" / "manifest.json").stat().st_mtime_ns
    keeper.close(save=True)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
    assert (tmp_path / "step-2" / "manifest.json").stat().st_mtime_ns == written


def test_after_an_update_that_failed_half_way_its_state_does_not_count(tmp_path: Path) -> None:
    loop, keeper, _ = build(tmp_path)
    keeper.begin(ALONE, 0)
    loop.step()

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle of the update")

    handle = loop.task.optimizer.register_step_post_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle of the update"):
        loop.step()
    handle.remove()
    assert not keeper.close_at_once(save=True)
    assert keeper.begin(ALONE, 0) == "scratch"
    assert keeper.redone_steps == 1
    assert loop.step().loss == pytest.approx(expected_losses(1)[0], rel=1e-9)
