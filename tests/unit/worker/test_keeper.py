"""How a replicated trainer's state outlives its rank."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.checkpoint.adoption import adopt
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.errors import CheckpointError, GroupError
from oakum_worker.keeping.replicated import NO_STATE, ReplicatedKeeper
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.spec_options import CheckpointSpec
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import build_loop, build_spec, build_task, digest

ALONE = Generation(number=1, members=(Member(fragment="f", node="n", ranks=(Endpoint(host="h", port=1),)),))
TOGETHER = ALONE.model_copy(update={"number": 2, "members": ALONE.members * 2})


@pytest.fixture
def memory() -> Iterator[HostMemory]:
    descriptor = os.memfd_create("test")
    yield HostMemory(descriptor)
    os.close(descriptor)


def keeper(
    loop: TrainingLoop, folder: Path, memory: HostMemory, warnings: list[str] | None = None
) -> ReplicatedKeeper:
    warn = ([] if warnings is None else warnings).append
    return ReplicatedKeeper(
        loop.state, CheckpointSpec(hot_every_steps=1), DurableCheckpoints(folder, keep=2), memory, warn
    )


def began(loop: TrainingLoop, folder: Path, memory: HostMemory) -> tuple[ReplicatedKeeper, str]:
    kept = keeper(loop, folder, memory)
    kept.recall()
    return kept, kept.begin(ALONE, 0)


def test_a_rank_started_anew_goes_on_from_the_nodes_memory(tmp_path: Path, memory: HostMemory) -> None:
    before, after = build_loop(), build_loop(seed=9)
    kept, source = began(before, tmp_path, memory)
    assert source == "scratch"
    for _ in range(3):
        before.step()
    kept.after_step(durable=False)
    assert began(after, tmp_path, memory)[1] == "memory"
    assert digest(after) == digest(before)


def test_a_durable_checkpoint_that_is_newer_than_the_copy_in_memory_counts(
    tmp_path: Path, memory: HostMemory
) -> None:
    before, after = build_loop(), build_loop(seed=9)
    kept, _ = began(before, tmp_path, memory)
    before.step()
    kept.after_step(durable=False)
    before.step()
    kept.close(save=True)
    assert began(after, tmp_path, memory)[1] == "checkpoint"
    assert after.step_count == 2


def test_weights_of_an_evaluation_are_never_saved(tmp_path: Path, memory: HostMemory) -> None:
    """A task may put averaged weights into its model while it evaluates."""
    loop = build_loop()
    kept, _ = began(loop, tmp_path, memory)
    loop.step()
    answers = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        own = [p.clone() for p in model.parameters()]
        for p in model.parameters():
            p.zero_()
        answers.append(kept.close_at_once(save=True))
        for p, value in zip(model.parameters(), own, strict=True):
            p.copy_(value)
        return {}

    loop.task.evaluate = evaluate
    loop.evaluations.run()
    assert answers == [False]
    assert DurableCheckpoints(tmp_path, keep=2).newest() is None
    assert kept.close_at_once(save=True)
    assert DurableCheckpoints(tmp_path, keep=2).newest() is not None


def test_a_state_taken_in_the_middle_of_a_step_has_the_buffers_of_its_beginning_under_every_name() -> None:
    shared = nn.BatchNorm1d(8).double()
    loop = build_loop(shared, nn.Tanh(), shared)
    loop.step()
    before = loop.task.model.state_dict()["4.running_mean"].clone()
    seen: list[torch.Tensor] = []
    plain = loop.task.loss

    def looking(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = plain(model, batch)
        with loop.state.held_at_boundary() as state:
            seen.extend(state["model"][name].clone() for name in ("2.running_mean", "4.running_mean"))
        return loss

    loop.task.loss = looking
    loop.step()
    assert all(torch.equal(found, before) for found in seen)


HOUR_S = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the keeper's clock is ahead."""
    ahead, now = [0.0], time.monotonic
    monkeypatch.setattr("oakum_worker.keeping.replicated.time.monotonic", lambda: now() + ahead[0])
    return ahead


def test_a_rank_started_anew_knows_for_how_long_nothing_was_made_durable(
    tmp_path: Path, memory: HostMemory
) -> None:
    before = build_loop()
    kept, _ = began(before, tmp_path, memory)
    before.step()
    kept.after_step(durable=False)
    long_ago = time.time() - HOUR_S
    os.utime(tmp_path, (long_ago, long_ago))
    assert began(build_loop(seed=9), tmp_path, memory)[0].durable_due()


def test_a_rank_started_anew_counts_from_the_newest_durable_checkpoint(tmp_path: Path, memory: HostMemory) -> None:
    before = build_loop()
    kept, _ = began(before, tmp_path, memory)
    before.step()
    kept.close(save=True)
    before.step()
    kept.after_step(durable=False)
    os.utime(tmp_path, (0, 0))
    assert not began(build_loop(seed=9), tmp_path, memory)[0].durable_due()
    (manifest,) = tmp_path.glob("step-1/manifest.json")
    os.utime(manifest, (0, 0))
    assert began(build_loop(seed=9), tmp_path, memory)[0].durable_due()


def test_a_new_rank_0_knows_when_the_one_before_it_has_written(tmp_path: Path, clock: list[float]) -> None:
    """A durable checkpoint is due by the time of the last one, not by when this rank has come."""
    kept = [
        ReplicatedKeeper(
            build_loop().state, CheckpointSpec(), DurableCheckpoints(tmp_path, keep=2), None, lambda _: None
        )
        for _ in range(2)
    ]
    old, new = kept
    old.begin(ALONE, 0)
    clock[0] += CheckpointSpec().every_s + 1
    assert old.durable_due()
    told = [old._gather_steps(1), new._gather_steps(1)]
    new._gather_steps = lambda _: ([steps[0] for steps, _ in told], [ages[0] for _, ages in told])  # type: ignore[method-assign]
    new._state.share = lambda source: None  # type: ignore[method-assign]
    new.begin(TOGETHER, 1)
    assert new.durable_due()
    new.after_step(durable=True)
    assert not new.durable_due()


def test_the_copy_in_memory_stays_until_the_others_have_the_state(tmp_path: Path, memory: HostMemory) -> None:
    """A rank that is lost while it hands its state over begins anew from there."""
    loop = build_loop()
    kept, _ = began(loop, tmp_path, memory)
    loop.step()
    kept.after_step(durable=False)

    def breaks(source: int) -> None:
        raise GroupError("lost")

    loop.state.share = breaks  # type: ignore[method-assign]
    kept._gather_steps = lambda _: ([1, NO_STATE], [0.0, 0.0])  # type: ignore[method-assign]
    with pytest.raises(GroupError):
        kept.begin(TOGETHER, 0)
    assert memory.load() is not None


def test_nobody_begins_anew_where_a_member_should_have_the_state(tmp_path: Path, memory: HostMemory) -> None:
    kept = keeper(build_loop(), tmp_path, memory)
    with pytest.raises(GroupError, match="no member has the state"):
        kept.begin(ALONE.model_copy(update={"has_state": True}), 0)
    assert not kept.holds_state
    kept.begin(ALONE, 0)
    assert kept.holds_state


def begun_from(
    folder: Path, tmp_path: Path, memory: HostMemory, loop: TrainingLoop
) -> tuple[TrainingLoop, ReplicatedKeeper]:
    """A trainer that begins from the newest checkpoint in another trainer's folder."""
    target = tmp_path / "other"
    adopt(folder, target, "old")
    kept, source = began(loop, target, memory)
    assert source == "checkpoint"
    return loop, kept


@pytest.mark.parametrize("options", [{}, {"warm_up": {"epochs": 1.0}}, {"ema": {"decay": 0.9}}])
def test_a_trainer_of_the_same_spec_that_begins_from_another_goes_on_bit_for_bit(
    tmp_path: Path, memory: HostMemory, options: dict[str, Any]
) -> None:
    old = build_loop(**options)
    for _ in range(5):
        old.step()
    DurableCheckpoints(tmp_path / "old", keep=2).save(old.state.state_dict(), old.step_count)
    new, kept = begun_from(tmp_path / "old", tmp_path, memory, build_loop(seed=9, **options))
    assert digest(new) == digest(old)
    assert [new.step().loss for _ in range(3)] == [old.step().loss for _ in range(3)]
    assert digest(new) == digest(old)
    kept.finish()  # Its own checkpoint is its own: another rank takes it up as it is.
    again = build_loop(seed=9, **options)
    assert began(again, tmp_path / "other", memory)[1] == "checkpoint"
    assert digest(again) == digest(new)
    assert DurableCheckpoints(tmp_path / "old", keep=2).newest() is not None


def test_a_trainer_that_begins_from_another_has_its_own_learning_rate_at_that_step(
    tmp_path: Path, memory: HostMemory
) -> None:
    def with_rate(rate: float) -> TrainingLoop:
        task = build_task()
        task.optimizer = torch.optim.Adam(task.model.parameters(), lr=rate, weight_decay=rate)
        task.scheduler = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, gamma=0.5)
        return TrainingLoop(task, build_spec())

    old = with_rate(0.1)
    for _ in range(3):
        old.step()
    DurableCheckpoints(tmp_path / "old", keep=2).save(old.state.state_dict(), old.step_count)
    new, _ = begun_from(tmp_path / "old", tmp_path, memory, with_rate(0.01))
    (group,) = new.task.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.01 * 0.5**3, 0.01)
    assert new.step_count == 3
    moments = [next(iter(loop.task.optimizer.state.values()))["exp_avg"] for loop in (old, new)]
    assert torch.equal(*moments)


def test_a_state_that_does_not_fit_or_is_spoilt_is_no_beginning(tmp_path: Path, memory: HostMemory) -> None:
    old = build_loop()
    for _ in range(8):  # one batch is left of the epoch and seven of the next
        old.step()
    saved = DurableCheckpoints(tmp_path / "old", keep=2).save(old.state.state_dict(), old.step_count)
    for loop, said in (
        (build_loop(nn.Linear(8, 8)), "the state does not fit the task"),
        (build_loop(epochs=1), "the state has finished 1 epochs, and the spec has 1: give more epochs"),
    ):
        with pytest.raises(CheckpointError, match=said):
            begun_from(tmp_path / "old", tmp_path, memory, loop)
        shutil.rmtree(tmp_path / "other")
    adopt(tmp_path / "old", tmp_path / "other", "old")
    data = next(saved.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="the state to begin from cannot be used: checkpoint of step 8"):
        began(build_loop(), tmp_path / "other", memory)
    with pytest.raises(CheckpointError, match="there is no durable checkpoint in"):
        adopt(tmp_path / "nothing", tmp_path / "third", "old")
    assert not (tmp_path / "third").exists()
