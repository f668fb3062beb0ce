"""Blocks that a MapReduce job prepares: kept while they would be the same, and with the same bits if not kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cells import each
from counting_rounds import NUM_BLOCKS, Counting, spec_fields
from oakum_worker.errors import TaskError
from oakum_worker.map_reduce.alone import run_round
from oakum_worker.map_reduce.job import Arrays
from oakum_worker.map_reduce.preparing import PreparedBlocks
from oakum_worker.map_reduce.rounds import RoundState, RoundTask
from oakum_worker.rehearsal.rehearsing import rehearse
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.strategies.map_reduce.engine import MapReduceEngine
from prepared_rounds import LOWER_ROUNDS, TwoLayers, Unprepared, blocks, first_state, layered_task
from sharded_ranks import Act, Script, play
from training_ranks import build_spec, digest, step_together
from waiting import DEADLINE_S

EPOCHS = LOWER_ROUNDS + 5


def build_loop(job: Any = None, most_bytes: int | None = None) -> TrainingLoop:
    task = layered_task(job)
    if most_bytes is not None:
        task.mapping.kept = PreparedBlocks(task.job, most_bytes)
    loop = TrainingLoop(task, build_spec(epochs=EPOCHS, **spec_fields()))
    assert isinstance(loop.assembly.engine, MapReduceEngine)
    loop.assembly.engine.patience_s = DEADLINE_S  # no block is dealt twice, however busy the machine
    return loop


def blocks_prepared(loop: TrainingLoop) -> int:
    assert isinstance(loop.task, RoundTask)
    return loop.task.mapping.kept.blocks_prepared


@pytest.fixture(scope="module")
def expected() -> str:
    """The digest of the trained state of a job that prepares nothing, in one process."""
    loop = build_loop(Unprepared())
    step_together([loop], EPOCHS)
    return digest(loop)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_each_block_is_prepared_once_and_any_number_of_mappers_gives_the_same_bits(
    num_ranks: int, expected: str
) -> None:
    loops = [build_loop() for _ in range(num_ranks)]
    step_together(loops, EPOCHS)
    assert {digest(loop) for loop in loops} == {expected}
    assert sum(blocks_prepared(loop) for loop in loops) == NUM_BLOCKS


@pytest.mark.parametrize("most_bytes", [0, 500])
def test_nothing_or_little_kept_gives_the_same_bits(most_bytes: int, expected: str) -> None:
    loops = [build_loop(most_bytes=most_bytes), build_loop()]
    step_together(loops, EPOCHS)
    assert {digest(loop) for loop in loops} == {expected}
    assert blocks_prepared(loops[0]) > NUM_BLOCKS


def test_a_mapper_that_gets_anothers_blocks_prepares_them() -> None:
    loops = [build_loop() for _ in range(3)]
    step_together(loops, LOWER_ROUNDS + 1)
    own = [blocks_prepared(loop) for loop in loops]
    step_together(loops[:2], 2)
    assert [blocks_prepared(loop) > before for loop, before in zip(loops[:2], own, strict=False)] == [True, True]
    assert sum(blocks_prepared(loop) for loop in loops[:2]) < 2 * NUM_BLOCKS


def test_kills_within_rounds_of_prepared_blocks_leave_the_same_bits(tmp_path: Path) -> None:
    acts = (
        Act((0, 1, 2), until=LOWER_ROUNDS + 1, dies=(1,), dies_after=2),
        Act((0, 2, 3), until=EPOCHS - 1, dies=(0,), dies_after=1),
        Act((2, 3), until=EPOCHS),
    )
    spec = {"epochs": EPOCHS, **spec_fields()}
    outcomes = play(Script(acts, str(tmp_path), task=layered_task, spec=spec))
    alone = build_loop()
    losses = {result.step: result.loss for result in (alone.step() for _ in range(EPOCHS))}
    assert [number for number, outcome in enumerate(outcomes) if outcome is None] == [0, 1]
    for outcome in outcomes:
        assert outcome is None or all(losses[step] == loss for step, loss in outcome.losses)
    assert outcomes[2] is not None
    assert max(step for step, _ in outcomes[2].losses) == EPOCHS


def state_at(number: int) -> dict[str, np.ndarray]:
    return {**first_state(), "round": np.asarray(number)}


def test_blocks_are_prepared_anew_once_what_they_depend_on_has_other_bits() -> None:
    kept, state = PreparedBlocks(TwoLayers()), state_at(LOWER_ROUNDS)
    own = blocks()

    def prepared_in_a_round() -> int:
        before = kept.blocks_prepared
        prepared = kept.of_round(state)
        for block in own:
            prepared(block)
        return kept.blocks_prepared - before

    assert [prepared_in_a_round(), prepared_in_a_round()] == [NUM_BLOCKS, 0]
    state["upper"] = state["upper"] + 1
    assert prepared_in_a_round() == 0
    state["lower"][2] = -0.0  # equal, with other bits
    assert [prepared_in_a_round(), prepared_in_a_round()] == [NUM_BLOCKS, 0]
    own[3][1][0] += 1  # as where a data set reads an example otherwise in another epoch
    assert prepared_in_a_round() == 1
    kept.of_round(state_at(0))
    assert kept.num_bytes == 0


def test_no_more_than_the_limit_is_kept_and_blocks_in_a_fixed_order_are_still_found() -> None:
    job, state = Shaped(lambda block: np.full(1000, block, dtype=np.float32)), state_at(0)
    kept = PreparedBlocks(job, most_bytes=9 * 4200)
    for _ in range(20):
        prepared = kept.of_round(state)
        for block in range(10):
            assert np.array_equal(prepared(block), np.full(1000, block, dtype=np.float32))
            assert kept.num_bytes <= 9 * 4200
    assert kept.num_bytes == sum(len(pickled) for pickled in kept._kept.values()) > 8 * 4000
    assert kept.blocks_prepared < 100  # of 200; all, if the block unused for longest had to go


class Shaped:
    """A job that prepares blocks by a function of the block."""

    def __init__(self, prepare: Any, names: Any = ("lower",)) -> None:
        self._prepare, self._names = prepare, names

    def prepared_by(self, _state: Arrays) -> Any:
        return self._names

    def prepare(self, _arrays: Arrays, block: Any) -> Any:
        return self._prepare(block)

    def map(self, _state: Arrays, block: Any) -> Arrays:
        return {"loss": np.asarray(np.sum(block)), "examples": np.ones(())}

    combine, update = Counting.combine, Counting.update


def test_maps_may_write_into_what_they_get() -> None:
    block = np.ones((4, 2))
    kept = PreparedBlocks(Shaped(lambda block: block))
    prepared = kept.of_round(state_at(0))
    for _ in range(2):
        found = prepared(block)
        found += 1
    assert np.array_equal(found, np.full((4, 2), 2.0))
    assert np.array_equal(block, np.ones((4, 2)))


def test_a_kept_block_has_the_memory_layout_of_a_prepared_one() -> None:
    block = np.arange(24.0).reshape(4, 6)
    prepared = PreparedBlocks(Shaped(lambda block: (block[:, ::2], block.T))).of_round(state_at(0))
    first, second = prepared(block), prepared(block)
    assert [part.strides for part in first] == [part.strides for part in second]


def test_the_rehearsal_finds_nothing_wrong_with_it() -> None:
    assert rehearse(layered_task(), build_spec(**spec_fields())) == ()


def test_the_rehearsal_finds_a_preparation_that_draws_its_own_numbers() -> None:
    def noisy(block: Any) -> Any:
        return block[1] + np.random.default_rng().normal()

    with pytest.raises(TaskError, match="the same samples"):
        rehearse(layered_task(Shaped(noisy)), build_spec(max_nodes=2, **spec_fields()))


def in_place(block: np.ndarray) -> np.ndarray:
    block *= 2
    return block


def generated(block: np.ndarray) -> Iterator[float]:
    return (float(value) for value in block)


@each(
    ("prepare", "message"),
    [
        (in_place, "prepare has changed the block that it was given: have it change a copy"),
        (lambda block: block[:-1], "prepare returned 3 rows for a block of 4 examples: return a row for each"),
        (lambda block: block.T, "prepare returned 2 rows for a block of 4 examples"),
        (lambda _: None, "prepare returned None: return the prepared block"),
        (generated, "prepare returned a generator that cannot be kept .*: return arrays, or tuples and dicts"),
    ],
    ids=["in place", "an example less", "transposed", "nothing", "no arrays"],
)
def test_a_mistaken_preparation_is_told_so(prepare: Any, message: str) -> None:
    prepared = PreparedBlocks(Shaped(prepare)).of_round(state_at(0))
    with pytest.raises(TaskError, match=message):
        prepared(np.ones((4, 2)))


def test_a_named_part_with_too_few_rows_is_named() -> None:
    def short(block: Any) -> Any:
        return {**block, "x": block["x"][1:]}

    prepared = PreparedBlocks(Shaped(short)).of_round(state_at(0))
    with pytest.raises(TaskError, match="prepare returned 3 rows in 'x' for a block of 4 examples"):
        prepared({"x": np.ones((4, 2)), "y": np.ones(4)})


def test_sums_over_examples_may_be_prepared() -> None:
    prepared = PreparedBlocks(Shaped(lambda block: {"gram": block.T @ block})).of_round(state_at(0))
    assert np.array_equal(prepared(np.ones((4, 2)))["gram"], np.full((2, 2), 4.0))


@each(
    ("names", "message"),
    [
        ("lower", "prepared_by returned 'lower': return a list of names"),
        (3, "prepared_by returned 3: return a list of names"),
        (["lwoer"], r"prepared_by named 'lwoer': name arrays of the state \(lower, upper\)"),
        (["round"], "prepared_by named 'round', and `round` is another number in each round"),
    ],
)
def test_mistaken_names_are_told_so(names: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        PreparedBlocks(Shaped(lambda block: block, names)).of_round(state_at(0))


def test_a_block_that_cannot_be_told_from_others_is_refused() -> None:
    prepared = PreparedBlocks(Shaped(lambda block: block)).of_round(state_at(0))
    with pytest.raises(TaskError, match="a block, a generator, cannot be told from others"):
        prepared(generated(np.ones(2)))


def test_half_of_a_preparation_is_refused() -> None:
    class Half(Counting):
        def prepare(self, _arrays: Arrays, block: Any) -> Any:
            return block

    with pytest.raises(TaskError, match="Half has `prepare` and no `prepared_by`"):
        layered_task(Half())


def test_neither_preparing_nor_mapping_can_write_into_the_state() -> None:
    def write(arrays: Arrays, _block: Any) -> Any:
        arrays["lower"][0] = 1.0

    job: Any = TwoLayers()
    for name in ("prepare", "map"):
        setattr(job, name, write)
        loop = build_loop(job)
        model = loop.task.model
        assert isinstance(model, RoundState)
        model.round += LOWER_ROUNDS
        with pytest.raises(ValueError, match="read-only"):
            loop.step()
        assert not model.arrays()["lower"].any()
        setattr(job, name, getattr(TwoLayers(), name))


def test_one_process_without_a_trainer_may_keep_prepared_blocks() -> None:
    job, state = TwoLayers(), state_at(LOWER_ROUNDS)
    kept = PreparedBlocks(job)
    totals = [run_round(job, state, blocks(), one) for one in (None, kept, kept)]
    assert len({total["pull"].tobytes() for total in totals}) == 1
    assert kept.blocks_prepared == NUM_BLOCKS
