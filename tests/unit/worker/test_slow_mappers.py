"""Blocks of slow mappers are dealt again within the round, and the first delivery of a block counts."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

from cells import each
from counting_rounds import NUM_BLOCKS, counting_task, spec_fields
from oakum_worker.errors import GroupError
from oakum_worker.map_reduce.dealer import Dealer, Deliver, Map
from oakum_worker.map_reduce.dealing import Share, even_shares
from oakum_worker.map_reduce.job import Arrays, add
from oakum_worker.map_reduce.sums import BlockSums, Node
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.strategies.map_reduce import round_server
from oakum_worker.strategies.map_reduce.engine import MapReduceEngine
from training_ranks import build_spec, digest, in_ranks, step_together
from waiting import DEADLINE_S, wait_until

EPOCHS = 8


def ones(*blocks: int, num_blocks: int) -> dict[Node, Arrays]:
    """The nodes of these blocks, each of which counts 1."""
    sums = BlockSums(num_blocks, add)
    for block in blocks:
        sums.add(block, {"x": np.ones(1)})
    return sums.nodes


def dealer_of(num_blocks: int, num_ranks: int, patience_s: float = 1.0) -> Dealer:
    shares = even_shares(num_blocks, num_ranks)
    return Dealer(num_blocks, shares, add, deque(maxlen=32), patience_s, now_s=100.0)


def test_a_slow_mappers_blocks_are_dealt_again_once_another_is_idle() -> None:
    dealer = dealer_of(6, 2)
    assert dealer.ask(0, [], 100.0) == Map((0, 1, 2))
    assert dealer.ask(1, [], 100.0) == Map((3, 4, 5))
    assert dealer.ask(1, [3], 100.5) == Map((4, 5))
    assert dealer.ask(0, [0, 1, 2], 103.0) == Deliver()
    assert dealer.next_look_s is None
    assert dealer.take(0, ones(0, 1, 2, num_blocks=6), 103.0) is None
    assert dealer.next_look_s == 106.0  # twice the usual second, for each of three blocks
    assert dealer.orders_at(105.9) == {}
    assert dealer.orders_at(106.0) == {0: Map((3, 4, 5))}
    assert dealer.next_look_s is None
    assert dealer.ask(0, [3, 4, 5], 107.0) == Deliver()
    assert dealer.take(0, ones(3, 4, 5, num_blocks=6), 107.0) is None
    assert dealer.is_complete
    assert dealer.sums.total["x"] == 6


def test_no_mapper_is_slow_before_the_patience_ends() -> None:
    dealer = dealer_of(2, 2, patience_s=5.0)
    dealer.ask(0, [], 100.0)
    dealer.ask(0, [0], 100.1)
    dealer.take(0, ones(0, num_blocks=2), 100.1)
    assert dealer.orders_at(104.9) == {}
    assert dealer.orders_at(105.0) == {0: Map((1,))}


def test_both_answers_count_once_and_in_either_order() -> None:
    for slow_first in (True, False):
        dealer = dealer_of(4, 2)
        dealer.ask(0, [], 100.0)
        dealer.ask(1, [], 100.0)
        dealer.ask(0, [0, 1], 100.2)
        dealer.take(0, ones(0, 1, num_blocks=4), 100.2)
        assert dealer.orders_at(102.0) == {0: Map((2, 3))}
        assert dealer.ask(1, [2], 102.1) == Deliver()  # no more of its row, which is another's now
        answers = [(1, ones(2, num_blocks=4)), (0, ones(2, 3, num_blocks=4))]
        assert dealer.ask(0, [2, 3], 102.2) == Deliver()
        for rank, nodes in answers if slow_first else reversed(answers):
            dealer.take(rank, nodes, 102.3)
        assert dealer.sums.total["x"] == 4


def test_a_slow_helpers_blocks_are_dealt_again_too() -> None:
    dealer = dealer_of(3, 3)
    for rank in range(3):
        dealer.ask(rank, [], 100.0)
    for rank in range(2):
        dealer.ask(rank, [rank], 100.1)
        dealer.take(rank, ones(rank, num_blocks=3), 100.1)
    assert dealer.orders_at(101.0) == {0: Map((2,))}
    assert dealer.next_look_s == 102.0
    assert dealer.orders_at(102.0) == {1: Map((2,))}


def test_what_a_mapper_keeps_is_delivered_first() -> None:
    shares = [Share(frozenset({(1, 0)}), (2,)), Share(frozenset({(0, 3)}), ())]
    dealer = Dealer(4, shares, add, deque(maxlen=32), 1.0, now_s=100.0)
    assert dealer.ask(1, [], 100.0) == Deliver()
    assert dealer.take(1, ones(3, num_blocks=4), 100.0) is None
    assert dealer.ask(0, [], 100.0) == Map((2,))
    assert dealer.ask(0, [2], 100.1) == Deliver()
    dealer.take(0, ones(0, 1, 2, num_blocks=4), 100.1)
    assert dealer.sums.total["x"] == 4


@each("seed", range(20))
def test_whatever_arrives_twice_in_whatever_order_has_the_same_bits(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_blocks = int(draw.integers(1, 18))
    waves = [np.sin(np.arange(3, dtype=np.float32) + i) for i in range(num_blocks)]
    values = [{"x": np.float32(10.0 ** (i % 7)) * wave} for i, wave in enumerate(waves)]
    plain, sums = BlockSums(num_blocks, add), BlockSums(num_blocks, add)
    for block, value in enumerate(values):
        plain.add(block, value)
    while not sums.is_complete:
        part = BlockSums(num_blocks, add)
        for block in draw.permutation(num_blocks)[: draw.integers(1, num_blocks + 1)]:
            part.add(int(block), values[block])
        for node, found in part.nodes.items():
            sums.offer(node, found)
    assert sums.total["x"].tobytes() == plain.total["x"].tobytes()


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def loops_with_a_stuck_rank(num_ranks: int, stuck: int, gate: threading.Event, at: int = 1) -> list[TrainingLoop]:
    """Loops whose rank `stuck` does not end its first map of round `at` before the gate is opened."""

    def build(rank: int) -> TrainingLoop:
        def wait(state: Arrays, _block: int) -> None:
            if rank == stuck and int(state["round"]) == at:
                assert gate.wait(DEADLINE_S)

        return TrainingLoop(counting_task(wait), build_spec(epochs=EPOCHS, **spec_fields()))

    loops = [build(rank) for rank in range(num_ranks)]
    for loop in loops:
        engine_of(loop).patience_s = 0.1
    return loops


def engine_of(loop: TrainingLoop) -> MapReduceEngine:
    assert isinstance(loop.assembly.engine, MapReduceEngine)
    return loop.assembly.engine


def is_idle(loop: TrainingLoop) -> bool:
    """Whether this loop of rank 0 waits for the other ranks' blocks."""
    server = engine_of(loop)._server
    return server is not None and 0 in server._dealer.idle


def losses_alone() -> list[float]:
    loop = TrainingLoop(counting_task(), build_spec(epochs=EPOCHS, **spec_fields()))
    return [loop.step().loss for _ in range(EPOCHS)]


@each(("num_ranks", "stuck"), [(3, 2), (2, 1), (3, 0), (2, 0)])
def test_a_stuck_mapper_holds_up_neither_its_round_nor_the_next(num_ranks: int, stuck: int) -> None:
    """Its gate is opened once the others have ended three rounds more; rank 0, which serves, may be the one."""
    gate, ended = threading.Event(), threading.Barrier(num_ranks - 1)
    loops = loops_with_a_stuck_rank(num_ranks, stuck, gate)

    def run(group: Any, rank: int) -> list[float]:
        loops[rank].join(group, rank, num_ranks)
        losses = []
        for step in range(EPOCHS):
            losses.append(loops[rank].step().loss)
            if rank != stuck and step == 4:
                ended.wait(DEADLINE_S)
                gate.set()
        return losses

    assert in_ranks(num_ranks, run) == [losses_alone()] * num_ranks
    assert len({digest(loop) for loop in loops}) == 1
    assert sum(engine_of(loop).blocks_mapped for loop in loops) > EPOCHS * NUM_BLOCKS


def test_others_wait_for_a_rank_that_is_too_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of more rounds are kept for none: with two, the stuck rank's round is followed by two at most."""
    monkeypatch.setattr(round_server, "MOST_BEHIND", 2)
    gate, steps, seen = threading.Event(), [0, 0], []
    loops = loops_with_a_stuck_rank(2, 1, gate)
    appended = threading.Event()

    class Noticing(list[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            appended.set()

    build = round_server.RoundServer.__init__

    def noticed(server: Any, *arguments: Any) -> None:
        build(server, *arguments)
        server._too_early = Noticing()

    monkeypatch.setattr(round_server.RoundServer, "__init__", noticed)

    def open_when_too_early() -> None:
        assert appended.wait(DEADLINE_S)
        seen.append(steps[0])
        gate.set()

    watcher = threading.Thread(target=open_when_too_early)
    watcher.start()

    def run(group: Any, rank: int) -> list[float]:
        loops[rank].join(group, rank, 2)
        losses = []
        for _ in range(EPOCHS):
            losses.append(loops[rank].step().loss)
            steps[rank] += 1
        return losses

    assert in_ranks(2, run) == [losses_alone()] * 2
    watcher.join()
    assert seen == [3]  # the first round, in which none was stuck, and two


def test_votes_of_a_rank_that_comes_late_count_in_its_next_round() -> None:
    gate = threading.Event()
    loops = loops_with_a_stuck_rank(2, 1, gate, at=0)

    def run(group: Any, rank: int) -> list[bool]:
        loops[rank].join(group, rank, 2)
        asked = []
        for step in range(4):
            asked.append(loops[rank].step(checkpoint=rank == 1 and step == 1).checkpoint)
            if rank == 0 and step == 1:
                gate.set()
        return asked

    first, second = in_ranks(2, run)
    assert first == second
    assert sum(first) == 1
    assert not first[0]
    assert not first[1]  # over before the rank had begun it


class Gate(threading.Event):
    """An event that tells whether somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited.set()
        return super().wait(timeout)


def test_a_mapper_tells_how_long_it_waits_for_a_slower_one() -> None:
    gate = Gate()
    loops = loops_with_a_stuck_rank(2, 1, gate, at=0)
    clock = Clock()
    for loop in loops:
        engine_of(loop).patience_s = DEADLINE_S
        loop.times.__init__(clock)  # type: ignore[misc]

    def let_time_pass() -> None:
        assert gate.is_awaited.wait(DEADLINE_S)
        wait_until("rank 0 has nothing left to do", lambda: is_idle(loops[0]))
        clock.now_s += 5.0
        gate.set()

    watcher = threading.Thread(target=let_time_pass)
    watcher.start()
    step_together(loops, 1)
    watcher.join()
    paces = [loop.times.pace() for loop in loops]
    assert [pace and (pace.seconds, pace.waiting_s) for pace in paces] == [(5.0, 5.0), (5.0, 0.0)]


def test_rank_0_that_only_waits_learns_that_a_mapper_is_lost() -> None:
    """Rank 0 sends nothing then, and gloo tells a receive from any rank nothing."""
    groups: dict[int, Any] = {}

    def be_lost(_state: Arrays, _block: int) -> None:
        wait_until("rank 0 has nothing left to do", lambda: is_idle(loops[0]))
        with suppress(RuntimeError):  # a wait on gloo that times out closes all of a rank's connections
            groups[1].recv([torch.empty(1)], 0, 77).wait(timedelta(milliseconds=1))
        raise GroupError("this mapper is lost")

    tasks = [counting_task(), counting_task(be_lost)]
    loops = [TrainingLoop(task, build_spec(epochs=EPOCHS, **spec_fields())) for task in tasks]
    engine_of(loops[0]).patience_s = DEADLINE_S

    def run(group: Any, rank: int) -> str:
        groups[rank] = group
        loops[rank].join(group, rank, 2)
        with pytest.raises(GroupError) as raised:
            loops[rank].step()
        return str(raised.value)

    told = in_ranks(2, run)
    assert told[0].startswith("a rank was lost within a round of MapReduce")
    assert told[1] == "this mapper is lost"
