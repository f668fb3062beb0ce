"""How a replicated trainer's state outlives its rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.keeper import ReplicatedKeeper
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.spec_options import CheckpointSpec
from oakum_worker.trainer import TrainingLoop
from training_ranks import build_loop, digest

ALONE = Generation(number=1, members=(Member(fragment="f", node="n", ranks=(Endpoint(host="h", port=1),)),))


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
        loop, CheckpointSpec(hot_every_steps=1), DurableCheckpoints(folder, keep=2), memory, warn
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
    loop.evaluate()
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
        with loop.held_at_boundary() as state:
            seen.extend(state["model"][name].clone() for name in ("2.running_mean", "4.running_mean"))
        return loss

    loop.task.loss = looking
    loop.step()
    assert all(torch.equal(found, before) for found in seen)
