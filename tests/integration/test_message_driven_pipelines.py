"""Workers that take what arrives first: ranks are threads of this process over gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError, ScheduleError
from oakum_worker.parallel.pipeline.links import PeerLinks, pairs_of
from oakum_worker.parallel.pipeline.message_driven import MessageDrivenEngine
from oakum_worker.parallel.pipeline.operations import Operation
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.subgroups import StoreSubgroups, Subgroups
from pipeline_ranks import (
    DEADLINE_S,
    DROPPING,
    Outcome,
    Pipeline,
    Share,
    Training,
    consecutive,
    die_once,
    in_threads,
    train_in_threads,
    train_once_alone,
)


def pipeline(num_workers: int, num_micro_batches: int, **options: Any) -> Pipeline:
    schedule = build("1f1b", num_workers=num_workers, num_micro_batches=num_micro_batches)
    return Pipeline(schedule, message_driven=True, **options)


def assert_same(made: list[Outcome], expected: Outcome, what: str, atol: float) -> None:
    values = {name: value for outcome in made for name, value in getattr(outcome, what).items()}
    torch.testing.assert_close(values, getattr(expected, what), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "num_workers", [4, pytest.param(2, marks=pytest.mark.soak), pytest.param(8, marks=pytest.mark.soak)]
)
def test_twenty_steps_with_dropout_make_the_weights_of_a_single_process(num_workers: int) -> None:
    # Samples drop the same wherever they are computed, and with how many others at once.
    made = train_in_threads(pipeline(num_workers, 4), replace(DROPPING, sizes=(2,) * 4))
    assert_same(made, train_once_alone(DROPPING), "weights", 1e-9)


def test_a_worker_that_is_the_whole_pipeline_needs_nobody() -> None:
    training = replace(DROPPING, num_steps=2)
    made = train_in_threads(pipeline(1, 8), training)
    assert_same(made, train_once_alone(training), "weights", 0)


@pytest.mark.parametrize("recompute", [False, True])
def test_replicas_share_the_batch_in_micro_batches_of_different_sizes(recompute: bool) -> None:
    training = replace(DROPPING, sizes=(3, 3, 2) * 2, num_steps=5)
    made = train_in_threads(pipeline(4, 3, num_replicas=2, recompute=recompute), training)
    assert_same(made, train_once_alone(training), "weights", 1e-9)


class Watched(nn.Module):
    """A layer that says when it begins forward and has ended backward, and may be held up there."""

    def __init__(self, at: Callable[[str, int], None]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 4).double()
        self._at = at
        self._num_forward = self._num_backward = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._at("F", self._num_forward)
        self._num_forward += 1
        made = self.linear(values)
        made.register_hook(self._on_backward)
        return made

    def _on_backward(self, _: torch.Tensor) -> None:
        self._at("B", self._num_backward)
        self._num_backward += 1


_BUILDING = threading.Lock()  # threads share torch's generator


def points(num_samples: int) -> torch.Tensor:
    return torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Ring:
    """A pipeline of watched layers, one for each worker."""

    def __init__(self, num_workers: int, num_micro_batches: int, **options: Any) -> None:
        self.schedule = build("1f1b", num_workers=num_workers, num_micro_batches=num_micro_batches)
        self.options = options
        self.orders: list[list[str]] = [[] for _ in range(num_workers)]
        """What each worker computed, in its order, as "F0"."""

    def gradients(self, at: Callable[[int, str, int], None] = lambda *_: None) -> list[torch.Tensor]:
        """The gradients of the layers' weights; `at(worker, kind, number)` is called before each computation."""
        return in_threads(self.schedule.num_workers, partial(self._run, at))

    def _run(self, at: Callable[[int, str, int], None], rank: int, subgroups: Subgroups) -> torch.Tensor:
        num_workers = self.schedule.num_workers
        with _BUILDING:
            layers = [Watched(partial(at, worker)) for worker in range(num_workers)]
        chain = Chain(layers, inputs=lambda batch: batch, loss=lambda output, batch: output.square().mean())
        links = PeerLinks(subgroups, range(num_workers), rank, pairs_of(self.schedule))
        cuts = [range(worker, worker + 1) for worker in range(num_workers)]

        def observe(operation: Operation, begin_s: float, end_s: float) -> None:
            self.orders[rank] += [f"{operation.kind}{number}" for number in operation.micro_batches]

        self.engine = engine = MessageDrivenEngine(
            self.schedule, rank, chain, cuts, links, lambda stage: None, observe=observe, **self.options
        )
        sizes = [2] * self.schedule.num_micro_batches
        engine.run(Share(chain, points(sum(sizes)), consecutive(sizes)))
        self.received = {**getattr(self, "received", {}), rank: engine.num_received}
        self.live = {**getattr(self, "live", {}), rank: engine.max_live}
        gradient = layers[rank].linear.weight.grad
        assert gradient is not None
        return gradient


def test_the_first_and_last_stage_receive_n_messages_and_those_between_2n() -> None:
    ring = Ring(4, 6)
    ring.gradients()
    assert ring.received == {0: 6, 1: 12, 2: 12, 3: 6}


@pytest.mark.parametrize(("limit", "expected"), [(None, 4), (2, 2), (1, 1), (9, 6)])
def test_no_more_micro_batches_are_on_their_way_than_the_limit(limit: int | None, expected: int) -> None:
    ring = Ring(4, 6, limit=limit)
    ring.gradients()
    forwards_first = [int(one[1:]) for one in ring.orders[0] if one[0] == "F"]
    assert forwards_first == list(range(6))
    assert ring.orders[0][: expected + 1] == [*(f"F{number}" for number in range(expected)), "B0"]
    in_flight, most = 0, 0
    for one in ring.orders[0]:
        in_flight += 1 if one[0] == "F" else -1
        most = max(most, in_flight)
    assert most == expected
    assert max(ring.live.values()) == expected


def wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def held_up(watched: int, num_first: int) -> Callable[[int, str, int], None]:
    """Let that many forward passes arrive at the watched worker before the first backward pass, and no more.

    For 4 workers: the last one begins when the watched one has begun those, and the first one goes on when the
    watched one has begun its first backward pass.
    """
    forwards_begun, backward_begun = threading.Event(), threading.Event()

    def at(worker: int, kind: str, number: int) -> None:
        match worker, kind, number:
            case (3, "F", 0):
                wait_for(forwards_begun)
            case (0, "F", number) if number == num_first:
                wait_for(backward_begun)
            case (worker, "F", number) if (worker, number) == (watched, num_first - 1):
                forwards_begun.set()
            case (worker, "B", 0) if worker == watched:
                backward_begun.set()

    return at


@pytest.mark.parametrize("watched", [1, 2])
def test_a_stage_takes_what_comes_first_and_its_gradients_stay_the_same(watched: int) -> None:
    expected = Ring(4, 6).gradients()
    for num_first in (1, 2, 3, 4):
        ring = Ring(4, 6)
        gradients = ring.gradients(held_up(watched, num_first))
        torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-15)
        assert ring.orders[watched][: num_first + 1] == [*(f"F{number}" for number in range(num_first)), "B0"]


def test_no_thread_is_left_after_a_step() -> None:
    train_in_threads(pipeline(4, 4), Training(sizes=(1,) * 4, num_steps=2))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("from ")] == []


def test_a_lost_peer_is_a_group_error_and_ends_the_threads() -> None:
    linked = threading.Event()

    def run(rank: int, subgroups: StoreSubgroups) -> None:
        schedule = build("1f1b", num_workers=2, num_micro_batches=4)
        links = PeerLinks(subgroups, range(2), rank, pairs_of(schedule))
        if rank == 1:
            die_once(linked, subgroups)
            return
        linked.set()
        chain = Chain([nn.Linear(4, 4).double() for _ in range(2)], inputs=lambda b: b, loss=lambda o, b: o.mean())
        cuts = [range(worker, worker + 1) for worker in range(2)]
        engine = MessageDrivenEngine(schedule, rank, chain, cuts, links, lambda stage: None)
        with pytest.raises(GroupError, match="a rank was lost"):
            engine.run(Share(chain, points(8), consecutive([2] * 4)))

    in_threads(2, run)
    deadline_s = time.monotonic() + DEADLINE_S
    while any(thread.name.startswith("from ") for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "a thread was left"
        time.sleep(0.01)


def test_a_worker_with_several_stages_cannot_be_message_driven() -> None:
    schedule = build("chimera", num_workers=2, num_micro_batches=2)
    chain = Chain([nn.Tanh(), nn.Tanh()], inputs=lambda b: b, loss=lambda o, b: o)
    with pytest.raises(ScheduleError, match="hold one stage each"):
        MessageDrivenEngine(schedule, 0, chain, [range(1), range(1, 2)], Any, lambda stage: None)  # type: ignore
