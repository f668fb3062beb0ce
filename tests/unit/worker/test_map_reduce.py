"""Rounds of MapReduce: sums in a fixed order, blocks dealt to any ranks, kills within a round."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cells import each
from counting_rounds import NUM_BLOCKS, blocks, counting_task, spec_fields
from oakum_worker.errors import TaskError
from oakum_worker.map_reduce.alone import run_round
from oakum_worker.map_reduce.dealing import deal
from oakum_worker.map_reduce.draws import uniform
from oakum_worker.map_reduce.job import Arrays, add
from oakum_worker.map_reduce.rounds import RoundState, RoundTask
from oakum_worker.map_reduce.sums import BlockSums
from oakum_worker.map_reduce.wire import from_bytes, to_bytes
from oakum_worker.rehearsal.rehearsing import rehearse
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.strategies.map_reduce.engine import MapReduceEngine
from sharded_ranks import Act, Script, play
from training_ranks import build_spec, build_task, digest, step_together

EPOCHS = 8


def build_loop() -> TrainingLoop:
    return TrainingLoop(counting_task(), build_spec(epochs=EPOCHS, **spec_fields()))


def alone(num_rounds: int) -> TrainingLoop:
    loop = build_loop()
    for _ in range(num_rounds):
        loop.step()
    return loop


def engine_of(loop: TrainingLoop) -> MapReduceEngine:
    assert isinstance(loop.assembly.engine, MapReduceEngine)
    return loop.assembly.engine


@each("num_blocks", range(1, 18))
def test_a_sum_has_the_same_bits_in_whatever_order_and_by_whomever_blocks_are_added(num_blocks: int) -> None:
    values = [
        {"x": np.float32(10.0 ** (i % 7)) * np.sin(np.arange(3, dtype=np.float32) + i)} for i in range(num_blocks)
    ]
    found = set()
    for seed in range(6):
        order = list(range(num_blocks))
        random.Random(seed).shuffle(order)
        parts = [BlockSums(num_blocks, add) for _ in range(1 + seed % 3)]
        for place, block in enumerate(order):
            parts[place % len(parts)].add(block, values[block])
        whole = BlockSums(num_blocks, add)
        for part in parts:
            for node, statistics in part.nodes.items():
                whole.add_node(node, statistics)
        found.add(whole.total["x"].tobytes())
    assert len(found) == 1
    np.testing.assert_allclose(np.frombuffer(found.pop(), np.float32), sum(v["x"] for v in values), rtol=1e-5)


def test_blocks_in_a_row_need_few_nodes() -> None:
    sums = BlockSums(64, add)
    for block in range(16, 32):
        sums.add(block, {"x": np.zeros(1)})
    assert set(sums.nodes) == {(4, 1)}


def test_a_total_is_refused_while_blocks_are_missing() -> None:
    sums = BlockSums(3, add)
    sums.add(1, {"x": np.zeros(1)})
    with pytest.raises(ValueError, match="the statistics of 2 of 3 blocks are missing"):
        _ = sums.total


@each("seed", range(20))
def test_every_block_is_dealt_or_kept_once_whatever_ranks_hold(seed: int) -> None:
    draw = random.Random(seed)
    num_blocks = draw.randint(1, 20)
    ranks = [BlockSums(num_blocks, add) for _ in range(draw.randint(1, 5))]
    for sums in ranks:
        for block in draw.sample(range(num_blocks), draw.randint(0, num_blocks)):
            sums.add(block, {"x": np.ones(1)})
    whole = BlockSums(num_blocks, add)
    for sums, share in zip(ranks, deal([sums.levels() for sums in ranks]), strict=True):
        sums.keep_only(set(share.keeps))
        for block in share.computes:
            sums.add(block, {"x": np.ones(1)})
        for node, statistics in sums.nodes.items():
            whole.add_node(node, statistics)
    assert whole.total["x"] == num_blocks


def test_statistics_come_back_from_bytes_as_they_were() -> None:
    nodes: dict[tuple[int, int], Arrays] = {
        (2, 1): {"a": np.arange(6.0).reshape(2, 3), "n": np.asarray(3)},
        (0, 9): {"a": np.ones((2, 3)), "n": np.asarray(4)},
    }
    again = from_bytes(to_bytes(nodes))
    assert list(again) == [(2, 1), (0, 9)]
    assert all(np.array_equal(again[node][name], nodes[node][name]) for node in nodes for name in nodes[node])


def test_draws_are_uniform_and_belong_to_their_examples() -> None:
    whole = uniform(1, 2, examples=np.arange(400), units=50)
    assert np.array_equal(uniform(1, 2, examples=np.arange(100, 200), units=50), whole[100:200])
    assert not np.array_equal(uniform(1, 3, examples=np.arange(400), units=50), whole)
    assert whole.mean() == pytest.approx(0.5, abs=0.01)
    assert whole.var() == pytest.approx(1 / 12, abs=0.003)
    assert abs(np.corrcoef(whole[:, 0], whole[:, 1])[0, 1]) < 0.15


@each("num_ranks", [2, 3, 5, 8])
def test_any_number_of_mappers_gives_the_bits_of_one(num_ranks: int) -> None:
    loops = [build_loop() for _ in range(num_ranks)]
    step_together(loops, 5)
    assert {digest(loop) for loop in loops} == {digest(alone(5))}


def test_one_process_without_a_loop_gives_the_bits_of_the_loop() -> None:
    task, loop = counting_task(), alone(1)
    assert isinstance(task.model, RoundState)
    total = run_round(task.job, task.model.arrays(), blocks())  # in the data set's order
    task.model.take(task.job.update(task.model.arrays(), total))
    assert torch.equal(task.model.get_parameter("centre"), loop.task.model.get_parameter("centre"))


def test_with_a_combiner_bytes_are_those_of_few_nodes_a_mapper() -> None:
    loops = [build_loop() for _ in range(3)]
    step_together(loops, 4)
    statistics = counting_task().job.map({"centre": np.zeros(6), "round": np.zeros(())}, blocks()[0])
    one = sum(array.nbytes for array in statistics.values())
    sent = [engine_of(loop).bytes_sent for loop in loops]
    assert sent[0] == 0
    assert 4 * one <= sent[1] <= 4 * 3 * one
    assert sum(engine_of(loop).blocks_mapped for loop in loops) == 4 * NUM_BLOCKS


class Told:
    """The counting task, which writes into a folder who has mapped which block of which round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> RoundTask:
        return counting_task(self._tell)

    def _tell(self, state: Arrays, block: int) -> None:
        with (self._folder / f"round-{int(state['round'])}").open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {block}\n")

    def blocks_of(self, number: int) -> dict[int, list[int]]:
        """Process -> blocks that it has mapped in a round."""
        found: dict[int, list[int]] = {}
        for line in (self._folder / f"round-{number}").read_text(encoding="ascii").splitlines():
            process, block = map(int, line.split())
            found.setdefault(process, []).append(block)
        return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 4))])
def test_kills_at_random_moments_of_a_round_leave_the_same_bits(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    first, second = draw.randrange(3), 3 + draw.randrange(2)
    left = tuple(number for number in range(3) if number != first)
    told = Told(tmp_path)
    acts = (
        Act((0, 1, 2), until=2, dies=(first,), dies_after=draw.randrange(4)),
        Act((*left, 3, 4), until=4, dies=(second,), dies_after=draw.randrange(3)),
        Act((*left, 7 - second), until=EPOCHS),
    )
    (tmp_path / "kept").mkdir()
    spec = {"epochs": EPOCHS, **spec_fields()}
    outcomes = play(Script(acts, str(tmp_path / "kept"), task=told, spec=spec))
    assert [number for number, outcome in enumerate(outcomes) if outcome is None] == [first, second]
    expected = losses_alone()
    for outcome in outcomes:
        assert outcome is None or all(expected[step] == loss for step, loss in outcome.losses)
    for broken in (2, 4):
        mapped, living = told.blocks_of(broken), told.blocks_of(broken + 1).keys()
        finished = [block for process in living & mapped.keys() for block in mapped[process]]
        assert sorted(finished) == list(range(NUM_BLOCKS))  # none again that a survivor had


def losses_alone() -> dict[int, float]:
    """Step -> loss."""
    loop = build_loop()
    return {result.step: result.loss for result in (loop.step() for _ in range(EPOCHS))}


def test_a_plain_task_is_told_what_to_return() -> None:
    with pytest.raises(TaskError, match=r"return oakum_worker\.map_reduce.rounds\.map_reduce_task"):
        TrainingLoop(build_task(), build_spec(parallel={"data": "map-reduce"}))


def test_a_task_of_rounds_is_told_what_its_spec_lacks() -> None:
    loop = TrainingLoop(counting_task(), build_spec(global_batch=NUM_BLOCKS))
    with pytest.raises(TaskError, match=r"add `parallel: \{data: map-reduce\}`"):
        loop.step()


def test_a_map_without_a_loss_is_told_so() -> None:
    task: Any = counting_task()
    task.job.map = lambda _state, _block: {"examples": np.ones(())}
    loop = TrainingLoop(task, build_spec(**spec_fields()))
    with pytest.raises(TaskError, match="map returned no loss: add the block's total loss"):
        loop.step()


def test_the_rehearsal_finds_nothing_wrong_with_it() -> None:
    assert rehearse(counting_task(), build_spec(**spec_fields())) == ()
