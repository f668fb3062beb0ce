"""Ranks in processes of their own: against torch's DDP, and against kill -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from training_child import LAST_STEP
from training_ranks import ShakenPoints, build_loop
from waiting import DEADLINE_S, wait_until

TESTS = Path(__file__).parents[1]


@contextmanager
def ranks(mode: str, world_size: int, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a generation, none of which outlives the block."""
    command = [sys.executable, "-m", "training_child", mode]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(world_size), str(folder / "rendezvous")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def answer(process: subprocess.Popen[str], deadline_s: float) -> dict[str, Any] | None:
    """What the process printed before it ended; None where it has not ended by then."""
    try:
        output, _ = process.communicate(timeout=max(deadline_s - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return None
    return json.loads(output) if output else {"exit": process.returncode}


def test_gradients_equal_those_of_distributed_data_parallel(tmp_path: Path) -> None:
    with ranks("ddp", 2, tmp_path) as processes:
        deadline_s = time.monotonic() + DEADLINE_S
        for process in processes:
            found = answer(process, deadline_s)
            assert found is not None
            assert found["difference"] < 1e-12


def test_a_neighbour_of_a_killed_rank_is_told_and_goes_on_from_the_last_finished_step(tmp_path: Path) -> None:
    alone = build_loop(global_batch=12)
    for _ in range(LAST_STEP):
        alone.step()
    expected = {"step": LAST_STEP, "intact": True, "next_loss": pytest.approx(alone.step().loss, rel=1e-9)}
    with ranks("lose_a_peer", 3, tmp_path) as (first, second, victim):
        deadline_s = time.monotonic() + DEADLINE_S
        assert answer(victim, deadline_s) == {"exit": -9}
        wait_until("a neighbour ends", lambda: any(rank.poll() is not None for rank in (first, second)))
        # One that is not the dead rank's neighbour in the collective may stay blocked until its group is cut.
        told = [found for rank in (first, second) if (found := answer(rank, time.monotonic() + 1)) is not None]
    assert told
    for found in told:
        assert "a rank was lost" in found.pop("error")
        assert found == expected


def test_dropout_and_augmentation_are_the_same_on_three_ranks(tmp_path: Path) -> None:
    alone = build_loop(nn.Dropout(0.5), dataset=ShakenPoints())
    expected = [alone.step().loss for _ in range(6)]
    with ranks("draw", 3, tmp_path) as processes:
        deadline_s = time.monotonic() + DEADLINE_S
        for process in processes:
            found = answer(process, deadline_s)
            assert found is not None
            assert found["losses"] == pytest.approx(expected, rel=1e-12)
