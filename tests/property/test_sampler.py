"""The data order over any history of world sizes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from oakum_worker.sampler import Cursor, ElasticSampler, share_of

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
    per_epoch = sampler.batches_per_epoch
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
