"""Rows and columns of ranks that are processes: when one is killed, nobody stays blocked in any of the groups."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from torch import nn

from rank_processes import fork_context
from torus_ranks import KILLED_AT, LAST_STEP, main
from training_ranks import build_loop
from waiting import DEADLINE_S


def test_the_ranks_of_a_torus_go_on_when_one_is_killed_within_a_step() -> None:
    alone = build_loop(nn.BatchNorm1d(8))
    expected = {step: pytest.approx(alone.step().loss, rel=1e-9) for step in range(1, LAST_STEP + 1)}
    context = fork_context()
    lines, processes = zip(*(start(context, number) for number in range(6)), strict=True)
    deadline_s = time.monotonic() + DEADLINE_S
    try:
        endpoints = [receive(line, deadline_s) for line in lines]
        for line in lines:
            line.send(endpoints)
        assert wait([processes[5].sentinel], DEADLINE_S)
        for line in lines[:5]:
            with contextlib.suppress(BrokenPipeError):  # one may have learnt of it by itself, and have ended
                line.send(1)  # the generation that is over
        *outcomes, left_out = [receive(line, deadline_s) for line in lines[:5]]
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert left_out["losses"] == {step: expected[step] for step in range(1, KILLED_AT + 1)}
    for outcome in outcomes:
        assert outcome["losses"] == expected
        assert outcome["state"] == outcomes[0]["state"]


def start(context: Any, number: int) -> tuple[Connection, Any]:
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(number, theirs), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def receive(line: Connection, deadline_s: float) -> Any:
    assert line.poll(max(deadline_s - time.monotonic(), 0)), "a process did not answer"
    answer = line.recv()
    assert not isinstance(answer, str), answer
    return answer
