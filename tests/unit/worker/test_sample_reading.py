"""Reading samples, so that what is drawn meanwhile belongs to the sample and not to the rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset

from cells import each
from num_examples import scaled
from oakum_worker.errors import TaskError
from oakum_worker.parallel.chunks import share_of
from oakum_worker.step.reading import SampleReader
from oakum_worker.task import Task

NUM_SAMPLES = 80

DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(()).item(),
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),
    "all": lambda: torch.rand(()).item() + random.random() + float(np.random.rand()),
}


class Augmented:
    """Gives (index, a number drawn for it); counts what is read."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw
        self.num_read = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        self.num_read += 1
        return index, self.draw()


class Many(Augmented):
    """Reads many at once when asked to."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [(index, self.draw()) for index in indices]


class Records:
    """A stream whose order depends on the epoch; notes where it was opened, and counts what was read."""

    def __init__(self, draw: Callable[[], float] = lambda: 0.0, length: int = NUM_SAMPLES) -> None:
        self.draw = draw
        self.length = length
        self.opened: list[tuple[int, int]] = []
        self.num_read = 0
        self.open_s = self.read_s = 0.0
        self.now_s = 0.0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def samples(self, epoch: int, start: int) -> Iterator[Any]:
        self.opened.append((epoch, start))
        self.now_s += self.open_s
        for record in order(epoch)[start : self.length]:
            self.num_read += 1
            self.now_s += self.read_s
            yield record, self.draw()


def order(epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(NUM_SAMPLES), NUM_SAMPLES)


def build_reader(dataset: Any, seed: int = 1, **options: Any) -> SampleReader:
    model = torch.nn.Linear(1, 1)
    task = Task(
        model=model,
        dataset=dataset,
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    return SampleReader(task, seed, **options)


def read_one_by_one(reader: SampleReader, epoch: int) -> dict[int, float]:
    return dict(sample for index in range(NUM_SAMPLES) for sample in reader.read(epoch, index, [index]))


@each("build", [Augmented, Many, lambda draw: Subset(Augmented(draw), range(NUM_SAMPLES))])
@each("source", DRAWS)
def test_what_is_drawn_for_a_sample_depends_on_seed_epoch_and_index_alone(
    source: str, build: Callable[[Callable[[], float]], Any]
) -> None:
    reader = build_reader(build(DRAWS[source]))
    together = dict(reader.read(2, 0, range(NUM_SAMPLES)))
    assert read_one_by_one(build_reader(build(DRAWS[source])), 2) == together
    assert len(set(together.values())) == NUM_SAMPLES
    assert set(together.values()).isdisjoint(dict(reader.read(3, 0, range(NUM_SAMPLES))).values())
    other_seed = build_reader(build(DRAWS[source]), seed=2).read(2, 0, range(NUM_SAMPLES))
    assert set(together.values()).isdisjoint(dict(other_seed).values())


def test_a_data_set_that_begins_to_draw_later_is_noticed_in_the_chunk_in_which_it_does() -> None:
    def draw_of_late() -> float:
        return torch.rand(()).item() if late else 0.0

    late = False
    reader = build_reader(Augmented(draw_of_late))
    assert {drawn for _, drawn in reader.read(0, 0, range(NUM_SAMPLES))} == {0.0}
    late = True
    once = dict(reader.read(1, 0, range(NUM_SAMPLES)))
    assert read_one_by_one(build_reader(Augmented(draw_of_late)), 1) == once


def test_a_data_set_that_begins_to_draw_from_one_more_generator_is_noticed_too() -> None:
    reader = build_reader(Augmented(lambda: torch.rand(()).item() + (random.random() if late else 0.0)))
    late = False
    reader.read(0, 0, range(NUM_SAMPLES))
    late = True
    once = dict(reader.read(1, 0, range(NUM_SAMPLES)))
    assert read_one_by_one(reader, 1) == once


def test_samples_are_read_once_where_nothing_is_drawn_and_again_only_when_it_is_noticed() -> None:
    still, drawing = Augmented(lambda: 0.0), Augmented(random.random)
    for dataset, expected in ((still, [10, 20]), (drawing, [20, 30])):
        reader, counts = build_reader(dataset), []
        for start in (0, 10):
            reader.read(0, start, range(start, start + 10))
            counts.append(dataset.num_read)
        assert counts == expected


def test_many_at_once_are_asked_for_at_once_where_nothing_is_drawn() -> None:
    dataset = Many(lambda: 0.0)
    assert build_reader(dataset).read(0, 0, [7, 3]) == [(7, 0.0), (3, 0.0)]
    assert dataset.num_read == 0


def test_a_data_set_that_draws_and_reads_only_many_at_once_is_refused() -> None:
    class OnlyMany:
        def __len__(self) -> int:
            return NUM_SAMPLES

        def __getitems__(self, indices: Sequence[int]) -> list[Any]:
            return [random.random() for _ in indices]

    with pytest.raises(TaskError, match=r"\(OnlyMany\) draws random numbers .* give it a __getitem__"):
        build_reader(OnlyMany()).read(0, 0, [0, 1])


@settings(deadline=None, max_examples=scaled(40))
@given(st.data())
def test_a_stream_is_read_exactly_once_through_any_rescale_and_resume(data: st.DataObject) -> None:
    read: list[int] = []
    readers: dict[int, SampleReader] = {}
    position = 0
    while position < NUM_SAMPLES:
        size = min(data.draw(st.integers(1, 24)), NUM_SAMPLES - position)
        world_size = data.draw(st.integers(1, 4))
        if data.draw(st.booleans()):
            readers.clear()
        for rank in range(world_size):
            share = share_of(size, rank, world_size)
            reader = readers.setdefault(rank, build_reader(Records()))
            read += [record for record, _ in reader.read(1, position + share.start, share)]
        position += size
    assert read == order(1)


@each("source", DRAWS)
def test_what_a_stream_draws_for_a_sample_depends_on_seed_epoch_and_number_alone(source: str) -> None:
    together = build_reader(Records(DRAWS[source])).read(2, 0, range(NUM_SAMPLES))
    reader = build_reader(Records(DRAWS[source]))
    assert [sample for at in range(0, NUM_SAMPLES, 4) for sample in reader.read(2, at, range(4))] == together
    assert [sample for at in (8, 20, 12) for sample in reader.read(2, at, range(2))] == [
        sample for at in (8, 20, 12) for sample in together[at : at + 2]
    ]
    assert len({drawn for _, drawn in together}) == NUM_SAMPLES


def test_a_stream_is_opened_once_for_reads_that_follow_each_other_and_for_each_epoch() -> None:
    stream = Records()
    reader = build_reader(stream)
    for epoch in (0, 1):
        for start in range(0, NUM_SAMPLES, 10):
            reader.read(epoch, start, range(10))
    assert stream.opened == [(0, 0), (1, 0)]
    assert stream.num_read == 2 * NUM_SAMPLES


def read_every_fourth(stream: Records) -> None:
    reader = build_reader(stream, clock=lambda: stream.now_s)
    for start in range(0, NUM_SAMPLES, 8):
        reader.read(0, start, range(2))


def test_a_rank_reads_only_its_share_of_a_stream_that_opens_quickly() -> None:
    stream = Records()
    stream.open_s, stream.read_s = 0.001, 0.01
    read_every_fourth(stream)
    assert stream.opened == [(0, start) for start in range(0, NUM_SAMPLES, 8)]
    assert stream.num_read == 20


def test_a_rank_skips_the_samples_of_others_where_opening_takes_longer() -> None:
    stream = Records()
    stream.open_s, stream.read_s = 1.0, 0.01
    read_every_fourth(stream)
    assert stream.opened == [(0, 0)]
    assert stream.num_read == NUM_SAMPLES - 6


def test_a_stream_that_was_slow_to_open_at_first_is_tried_again_after_skipping_for_long() -> None:
    stream = Records()
    stream.open_s, stream.read_s = 2 / 64, 1 / 64
    reader = build_reader(stream, clock=lambda: stream.now_s)
    for start in range(0, NUM_SAMPLES, 2):
        reader.read(0, start, range(1))
        stream.open_s = 0.0
    # Opening and the first sample took 3/64 s; skipping has taken more than ten times that after 31 samples.
    assert stream.opened == [(0, 0), *((0, start) for start in range(64, NUM_SAMPLES, 2))]


def test_a_stream_read_up_to_a_place_is_not_taken_for_the_same_place_of_the_next_epoch() -> None:
    reader = build_reader(Records())
    reader.read(0, 0, range(4))
    assert [record for record, _ in reader.read(1, 4, range(3))] == order(1)[4:7]


def test_a_stream_that_ends_early_is_told_which_sample_is_missing() -> None:
    reader = build_reader(Records(length=15))
    with pytest.raises(TaskError, match=r"\(Records\) has 80 samples, but there is no number 15 in epoch 3"):
        reader.read(3, 10, range(10))


def test_a_stream_goes_on_after_an_error_of_its_own() -> None:
    def fail_once() -> float:
        if failures:
            raise OSError(failures.pop())
        return 0.0

    failures = ["the disk is away"]
    reader = build_reader(Records(fail_once))
    with pytest.raises(OSError, match="the disk is away"):
        reader.read(0, 4, range(3))
    assert [record for record, _ in reader.read(0, 4, range(3))] == order(0)[4:7]
