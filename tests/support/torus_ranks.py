"""Processes that train as ranks of a torus, one of which is killed, and a single process as their reference."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import GroupError
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import build_loop, digest

KILLED_AT, LAST_STEP = 3, 6
"""(last step that the killed process finishes, last step that the others finish)."""


@contextmanager
def in_a_world() -> Iterator[None]:
    """Run the body with torch's default group initialised, as it is in every rank; torch then looks up given
    groups."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def train(number: int, line: Connection) -> dict[str, Any]:
    """Train on a grid of 2 x 3 until process 5 is killed in a step, then on one of 2 x 2 without process 4."""
    group = GenerationGroup("127.0.0.1")
    loop = build_loop(nn.BatchNorm1d(8), parallel={"all_reduce": "torus", "batch_norm": "synchronised"})
    line.send(group.endpoint)
    endpoints = line.recv()
    threading.Thread(target=lambda: group.cut(line.recv()), daemon=True).start()
    if number == 5:
        die_in_step(loop)
    losses = run(loop, group, 1, endpoints, number)
    group.leave()
    if number < 4:
        losses |= run(loop, group, 2, endpoints[:4], number)
    return {"losses": losses, "state": digest(loop)}


def run(
    loop: TrainingLoop, group: GenerationGroup, generation: int, endpoints: list[Endpoint], rank: int
) -> dict[int, float]:
    """The losses by step, until the end or until the generation is broken."""
    losses = {}
    members = tuple(
        Member(fragment=f"f{index}", node=f"n{index}", ranks=(one,)) for index, one in enumerate(endpoints)
    )
    formed = group.form(Generation(number=generation, members=members), rank)
    loop.join(formed, rank, len(members), subgroups=group.subgroups)
    try:
        while loop.step_count < LAST_STEP:
            result = loop.step()
            losses[result.step] = result.loss
    except GroupError:
        assert generation == 1
    return losses


def die_in_step(loop: TrainingLoop) -> None:
    then = loop.task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        computed = then(model, batch)
        if loop.step_count == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return computed

    loop.task.loss = loss


def main(number: int, line: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        line.send(train(number, line))
    except Exception:
        line.send(traceback.format_exc())
    line.close()
    os._exit(0)  # without torch's teardown, which may wait for peers that are gone
