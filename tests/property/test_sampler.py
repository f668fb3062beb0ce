"""The data order over any history of world sizes."""

import copy
import json
import math
from collections import Counter
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oakum_worker.parallel.chunks import share_of
from oakum_worker.parallel.step_engine import GradientNorms
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step import batch_sizes as batch_size
from oakum_worker.step import gradient_noise as noise_scale
from oakum_worker.step.batch_sizes import BatchSizes, batch_sizes
from oakum_worker.step.sampler import ElasticSampler
from training_ranks import build_spec

sizes = st.integers(1, 200)
seeds = st.integers(0, 2**63 - 1)


def deal(sampler: ElasticSampler, epochs: int, world_sizes: list[int]) -> list[list[int]]:
    """The batches of all epochs, each put together from the shares of its ranks; world sizes take turns."""
    cursor, batches = Cursor(), []
    while cursor.epoch < epochs:
        size = sampler.batch_size(cursor)
        world_size = world_sizes[cursor.step % len(world_sizes)]
        shares = [share_of(size, rank, world_size) for rank in range(world_size)]
        batches.append([index for share in shares for index in sampler.indices(cursor, share)])
        assert len(batches[-1]) == size
        cursor = cursor.after(size, sampler.num_samples)
    return batches


@given(
    num_samples=sizes,
    global_batch=sizes,
    seed=seeds,
    epochs=st.integers(1, 3),
    world_sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20),
)
def test_every_epoch_visits_every_sample_exactly_once_while_the_world_size_changes(
    num_samples: int, global_batch: int, seed: int, epochs: int, world_sizes: list[int]
) -> None:
    sampler = ElasticSampler(num_samples, global_batch, seed)
    batches = deal(sampler, epochs, world_sizes)
    per_epoch = math.ceil(num_samples / global_batch)
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        visited = Counter(i for batch in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for i in batch)
        assert visited == Counter(range(num_samples))


@given(num_samples=sizes, global_batch=sizes, seed=seeds, world_sizes=st.lists(st.integers(1, 12), min_size=1))
def test_the_order_does_not_depend_on_the_world_size(
    num_samples: int, global_batch: int, seed: int, world_sizes: list[int]
) -> None:
    alone = deal(ElasticSampler(num_samples, global_batch, seed), 2, [1])
    assert deal(ElasticSampler(num_samples, global_batch, seed), 2, world_sizes) == alone


@given(num_samples=sizes, seed=seeds, consumed=st.integers(0, 199))
def test_a_cursor_alone_finds_its_place_again(num_samples: int, seed: int, consumed: int) -> None:
    cursor = Cursor(step=9, epoch=4, consumed=consumed % num_samples)
    warm = ElasticSampler(num_samples, 16, seed)
    deal(warm, 1, [1])
    cold = ElasticSampler(num_samples, 16, seed)
    positions = range(cold.batch_size(cursor))
    assert warm.indices(cursor, positions) == cold.indices(cursor, positions)


@given(num_samples=st.integers(0, 500), world_size=st.integers(1, 64))
def test_shares_are_contiguous_and_differ_by_at_most_one(num_samples: int, world_size: int) -> None:
    shares = [share_of(num_samples, rank, world_size) for rank in range(world_size)]
    assert [i for share in shares for i in share] == list(range(num_samples))
    lengths = {len(share) for share in shares}
    assert max(lengths) - min(lengths) <= 1


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = deal(ElasticSampler(50, 50, seed=0), 2, [1])
    other = deal(ElasticSampler(50, 50, seed=1), 1, [1])
    assert len({tuple(order) for order in (*first, *other, range(50))}) == 4


OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])


class Rank:
    """One process's view of the trainer: cursor and batches, as far as its data is concerned."""

    def __init__(self, spec: TrainerSpec, num_samples: int) -> None:
        self.cursor = Cursor()
        self.batches: BatchSizes = batch_sizes(spec, num_samples, OPTIMIZER)
        self.sampler = ElasticSampler(num_samples, self.batches.at, spec.seed)

    def size(self) -> int:
        return self.sampler.batch_size(self.cursor)

    def finish(self, size: int, parts_sqr: float, total_sqr: float, carried: float | None) -> None:
        self.cursor = self.cursor.after(size, self.sampler.num_samples)
        norms = GradientNorms(parts_sqr, 2, torch.tensor(total_sqr), carried)
        self.batches.observe(norms if self.batches.measures_noise else None, self.cursor, size, 1.0)

    def take_over(self, other: "Rank") -> None:
        """What a newcomer gets from a survivor, or from a checkpoint."""
        self.cursor = copy.copy(other.cursor)
        self.batches.load_state_dict(json.loads(json.dumps(other.batches.state_dict())))


plans = st.one_of(
    st.builds(
        lambda stages: {"batch_schedule": sorted(stages.items())},
        st.dictionaries(st.integers(0, 4), st.integers(1, 40), max_size=3),
    ),
    st.builds(lambda largest: {"adaptive_batch": {"largest": largest}}, st.integers(5, 60)),
)
events = st.tuples(st.sampled_from(["step", "step", "step", "grow", "shrink", "restart"]), st.floats(0.5, 9))


@settings(deadline=None)
@given(num_samples=st.integers(1, 120), plan=plans, history=st.lists(events, min_size=1, max_size=30))
@patch.object(batch_size, "_STEPS_BETWEEN_DECISIONS", 3)
@patch.object(noise_scale, "_ENOUGH", 0.0)
def test_every_epoch_visits_every_sample_exactly_once_while_batches_and_members_change(
    num_samples: int, plan: dict[str, object], history: list[tuple[str, float]]
) -> None:
    spec = build_spec(global_batch=5, epochs=4, **plan)
    ranks, visited, turn = [Rank(spec, num_samples)], Counter[tuple[int, int]](), 0
    while ranks[0].cursor.epoch < spec.epochs:
        event, noise = history[turn % len(history)]
        turn += 1
        if event in ("grow", "restart"):
            newcomer = Rank(spec, num_samples)
            newcomer.take_over(ranks[0])
            ranks = [newcomer] if event == "restart" else [*ranks, newcomer]
        elif event == "shrink" and len(ranks) > 1:
            ranks = ranks[1:]
        [size] = {rank.size() for rank in ranks}
        for number, rank in enumerate(ranks):
            share = share_of(size, number, len(ranks))
            indices = rank.sampler.indices(rank.cursor, share)
            assert len(indices) == len(share)
            visited.update((rank.cursor.epoch, index) for index in indices)
        totals = [rank.batches.carried for rank in ranks if rank.batches.carried is not None]
        carried = sum(map(float, totals)) / len(totals) if totals else None
        for number, rank in enumerate(ranks):  # What each finds by itself differs.
            rank.finish(size, noise, 1 + 0.1 * number, carried)
    assert visited == Counter((epoch, index) for epoch in range(spec.epochs) for index in range(num_samples))
