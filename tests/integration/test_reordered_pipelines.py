"""Schedules that no generator makes: the engine runs whatever is valid."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import pytest
import torch

from oakum_worker.parallel.pipeline.operations import (
    COMPUTATIONS,
    RECEIVES,
    SENDS,
    Kind,
    Operation,
    Schedule,
    received,
)
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.pipeline.validation import validate
from pipeline_ranks import DROPPING, Pipeline, train_in_threads, train_once_alone

Result = tuple[str, int, int, int]
"""An activation ("a"), gradient ("g") or backward pass for the inputs ("i") of (pipe, stage, micro-batch)."""


class Reordering:
    """The operations of a schedule in an order that workers might take that choose at random among the
    operations that can run."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self._schedule, self._random = schedule, random.Random(seed)
        self._left = [list(operations) for operations in schedule.operations]
        self._taken: list[list[Operation]] = [[] for _ in self._left]
        self._results: list[set[Result]] = [set() for _ in self._left]
        self._mail: defaultdict[tuple[int, int], deque[Operation]] = defaultdict(deque)

    def run(self) -> Schedule:
        while any(self._left):
            worker = self._random.choice([worker for worker, left in enumerate(self._left) if left])
            able = [operation for operation in self._left[worker] if self._is_able(worker, operation)]
            if able:
                self._take(worker, self._random.choice(able))
        return replace(self._schedule, operations=tuple(map(tuple, self._taken)))

    def _is_able(self, worker: int, operation: Operation) -> bool:
        if operation.kind in RECEIVES:
            mail = self._mail[self._schedule.peer_of(operation), worker]
            return bool(mail) and received(mail[0]) == operation
        if operation.kind is Kind.SYNC:
            before = self._left[worker][: self._left[worker].index(operation)]
            return not any(
                other.kind is Kind.SYNC or (other.kind in COMPUTATIONS and other.stage == operation.stage)
                for other in before
            )
        return self._needed(operation) <= self._results[worker]

    def _take(self, worker: int, operation: Operation) -> None:
        self._left[worker].remove(operation)
        self._taken[worker].append(operation)
        if operation.kind in RECEIVES:
            self._mail[self._schedule.peer_of(operation), worker].popleft()
        if operation.kind in SENDS:
            self._mail[worker, self._schedule.peer_of(operation)].append(operation)
        self._results[worker] |= _made(operation)

    def _needed(self, operation: Operation) -> set[Result]:
        stage, last = operation.stage, self._schedule.num_stages - 1
        match operation.kind:
            case Kind.FORWARD:
                sources = [("a", stage - 1)] if stage else []
            case Kind.BACKWARD | Kind.BACKWARD_INPUT:
                sources = [("a", stage)] + ([("g", stage + 1)] if stage < last else [])
            case Kind.BACKWARD_WEIGHT:
                sources = [("i", stage)]
            case Kind.SEND_ACTIVATION:
                sources = [("a", stage)]
            case _:
                sources = [("g", stage)]
        return {(kind, operation.pipe, source, n) for kind, source in sources for n in operation.micro_batches}


def _made(operation: Operation) -> set[Result]:
    made: dict[Kind, tuple[str, int]] = {
        Kind.FORWARD: ("a", 0),
        Kind.BACKWARD: ("g", 0),
        Kind.BACKWARD_INPUT: ("gi", 0),
        Kind.RECEIVE_ACTIVATION: ("a", -1),
        Kind.RECEIVE_GRADIENT: ("g", 1),
    }
    kinds, step = made.get(operation.kind, ("", 0))
    return {(kind, operation.pipe, operation.stage + step, n) for kind in kinds for n in operation.micro_batches}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("name", "num_workers", "options"),
    [
        ("1f1b", 4, {}),
        ("interleaved", 2, {}),
        ("zero-bubble-v", 4, {}),
        ("chimera", 4, {"scheme": "forward-doubling"}),
        ("chimera", 4, {"num_pipes": 4}),
    ],
)
def test_workers_may_take_their_operations_in_any_valid_order(
    name: str, num_workers: int, options: dict[str, Any], seed: int
) -> None:
    made_by_rule = build(name, num_workers=num_workers, num_micro_batches=8, **options)
    schedule = Reordering(made_by_rule, seed).run()
    validate(schedule)
    assert all(a != b for a, b in zip(schedule.operations, made_by_rule.operations, strict=True))
    training = replace(DROPPING, num_steps=2)
    expected = train_once_alone(training)
    for rank in train_in_threads(Pipeline(schedule), training):
        for parameter, gradient in rank.gradients.items():
            torch.testing.assert_close(gradient, expected.gradients[parameter], rtol=0, atol=1e-12, msg=parameter)
