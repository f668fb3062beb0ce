"""Predicted against measured speed-up: ranks over gloo whose compute and overhead are injected."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from oakum_solver.advice.scaling import StepCosts
from waiting import DEADLINE_S

COMPUTE_S, OVERHEAD_S, STEPS = 0.6, 0.12, 3
TOLERANCE = 0.2
"""Of predicted speed-up: what threads, gloo and other work on the machine add."""


def _step(group: dist.ProcessGroup | None, nodes: int, parts: dict[str, float] | None = None) -> None:
    began_s = time.perf_counter()
    time.sleep(COMPUTE_S / nodes)
    computed_s = time.perf_counter()
    if group is not None:
        group.allreduce([torch.ones(1000)]).wait()
    time.sleep(OVERHEAD_S)
    if parts is not None:
        parts["compute"] = min(parts.get("compute", 1e9), computed_s - began_s)
        parts["overhead"] = min(parts.get("overhead", 1e9), time.perf_counter() - computed_s)


def _measured_step_s(nodes: int) -> float:
    """The shortest step of so many ranks, each a thread with a group of its own."""
    store, shortest = dist.HashStore(), []

    def rank(number: int) -> None:
        group = dist.ProcessGroupGloo(
            dist.PrefixStore(str(nodes), store), number, nodes, timedelta(seconds=DEADLINE_S)
        )
        taken = []
        for _ in range(STEPS):
            began_s = time.perf_counter()
            _step(group, nodes)
            taken.append(time.perf_counter() - began_s)
        shortest.append(min(taken))

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(nodes)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(timeout=240)
    assert len(shortest) == nodes
    return max(shortest)


def test_the_lemma_predicts_the_speed_up_of_a_run_over_gloo() -> None:
    parts: dict[str, float] = {}
    for _ in range(STEPS):
        _step(None, 1, parts)
    costs = StepCosts(parts["compute"], parts["overhead"])
    alone_s = _measured_step_s(1)
    for nodes in (2, 3, 4):
        assert alone_s / _measured_step_s(nodes) == pytest.approx(costs.speedup(nodes), rel=TOLERANCE)
    assert costs.speedup(4) < 4 * (1 - TOLERANCE)  # so that a formula without overhead would fail
