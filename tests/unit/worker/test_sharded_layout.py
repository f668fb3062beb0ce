"""Which rows are where, and how they get from one layout to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from oakum_worker.parallel.holdings import Holdings, Part, Place, SplitTensor
from oakum_worker.parallel.recovery import Source, announce, choose_source, most_finished
from oakum_worker.parallel.reshard import PartLocations, exchange, gather_documents
from oakum_worker.parallel.split_state import RankSnapshot
from training_ranks import in_ranks

ROWS = st.integers(0, 40)
WORLD = st.integers(1, 9)


def rows_of(part: Part, tensor: SplitTensor) -> list[int]:
    """The rows of a tensor that belong to a part of rows or of whole tensors."""
    return [row for rows in part.block(tensor).spans[0] for row in rows]


@given(ROWS, WORLD)
def test_a_rank_has_the_rows_that_torch_deals_it(num_rows: int, world_size: int) -> None:
    chunks = torch.arange(num_rows).chunk(world_size)
    dealt = [chunk.tolist() for chunk in chunks if len(chunk)] + [[]] * world_size
    tensor = SplitTensor("t", (num_rows,), torch.float32)
    assert [rows_of(Part(world_size, rank), tensor) for rank in range(world_size)] == dealt[:world_size]


@given(ROWS, WORLD, st.data(), st.integers(1, 5))
def test_shares_have_each_row_of_a_part_once(num_rows: int, world_size: int, data: Any, count: int) -> None:
    part = Part(world_size, data.draw(st.integers(0, world_size - 1)))
    home = data.draw(st.none() | st.integers(0, world_size - 1))
    tensor = SplitTensor("t", (num_rows,), torch.float32, home)
    rows = [row for share in part.shares(count) for row in rows_of(share, tensor)]
    assert rows == rows_of(part, tensor)


def test_a_tensor_with_a_home_is_there_in_full_and_nowhere_else() -> None:
    tensors = [SplitTensor("matrix", (3, 2), torch.float32, home=1), SplitTensor("count", (), torch.int64, home=1)]
    parts = [Part(3, number) for number in range(3)]
    assert [[rows_of(part, tensor) for part in parts] for tensor in tensors] == [
        [[], [0, 1, 2], []],
        [[], [0], []],
    ]


def test_of_what_several_ranks_hold_the_lowest_is_told() -> None:
    first, second, tied = (Part(3, number) for number in range(3))
    holdings = Holdings(((first, tied), (second, tied), (first, tied), ()))
    assert holdings.parts == [first, second, tied]
    assert [Place(holdings, rank).first_of for rank in range(4)] == [(first, tied), (second,), (), ()]


def whole(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 113).to(dtype).reshape(shape)


def cut(tensors: list[SplitTensor], part: Part) -> dict[str, torch.Tensor]:
    """The part's rows of tensors that count their elements."""
    rows = {}
    for tensor in tensors:
        rows[tensor.path] = whole(tensor.shape, tensor.dtype)[rows_of(part, tensor)]
    return rows


@given(st.data())
def test_every_rank_is_sent_the_rows_of_its_new_part_whoever_had_them(data: Any) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=5))
    types = [torch.float64, torch.bfloat16, torch.bool, torch.int32]
    tensors = [SplitTensor(f"t{i}", shape, types[i % len(types)]) for i, shape in enumerate(shapes)]
    before, now = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    held: dict[Part, int] = {}
    for rank in range(before):
        for share in Part(before, rank).shares(data.draw(st.integers(1, 3))):
            held[share] = data.draw(st.integers(0, now - 1))
    batch_bytes = data.draw(st.sampled_from([1, 60, 1 << 20]))

    def as_rank(group: dist.ProcessGroup, rank: int) -> None:
        part = Part(now, rank)
        rows = {tensor.path: tensor.empty(part.block(tensor)) for tensor in tensors}
        mine = {share: cut(tensors, share) for share, holder in held.items() if holder == rank}
        needed = PartLocations(Holdings.one_each(now).all(), {part: rows})
        exchange(tensors, PartLocations(list(held.items()), mine), needed, group, rank, batch_bytes=batch_bytes)
        for path, expected in cut(tensors, part).items():
            assert torch.equal(rows[path], expected)

    in_ranks(now, as_rank)


@given(st.data())
def test_every_rank_is_sent_the_parts_that_it_needs_also_where_others_need_them_too(data: Any) -> None:
    num_parts, now = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    types = [torch.float64, torch.bfloat16, torch.int64]
    tensors = [
        SplitTensor(f"t{i}", data.draw(st.sampled_from([(5, 2), (1,), (9,)])), types[i % 3], i % num_parts)
        for i in range(data.draw(st.integers(1, 6)))
    ]
    parts = [Part(num_parts, number) for number in range(num_parts)]
    held = [(part, data.draw(st.integers(0, now - 1))) for part in parts]
    by_rank = [tuple(sorted(data.draw(st.sets(st.sampled_from(parts))))) for _ in range(now)]

    def as_rank(group: dist.ProcessGroup, rank: int) -> None:
        mine = {part: cut(tensors, part) for part, holder in held if holder == rank}
        rows = {part: {t.path: t.empty(part.block(t)) for t in tensors if part.block(t)} for part in by_rank[rank]}
        needed = PartLocations(Holdings(tuple(by_rank)).all(), rows)
        exchange(tensors, PartLocations(held, mine), needed, group, rank)
        for part, found in rows.items():
            for path, tensor in found.items():
                assert torch.equal(tensor, cut(tensors, part)[path])

    in_ranks(now, as_rank)


def test_large_runs_are_sent_as_they_are_and_small_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    isend = dist.isend
    monkeypatch.setattr(
        dist, "isend", lambda tensor, **to: (sent.append(tensor.data_ptr()), isend(tensor, **to))[1]
    )
    tensors = [SplitTensor(name, (2, 1 << 17), torch.float32) for name in ("a", "b")]
    tensors += [SplitTensor(name, (2, 3), torch.float32) for name in ("c", "d", "e")]

    def as_rank(group: dist.ProcessGroup, rank: int) -> list[int]:
        mine = {Part(1, 0): cut(tensors, Part(1, 0))} if rank == 0 else {}
        rows = cut(tensors, Part(1, 0)) if rank == 1 else {}
        needed = PartLocations([(Part(1, 0), 1)], {Part(1, 0): rows} if rank == 1 else {})
        exchange(tensors, PartLocations([(Part(1, 0), 0)], mine), needed, group, rank)
        return [mine[Part(1, 0)][name].data_ptr() for name in ("a", "b")] if rank == 0 else []

    large, _ = in_ranks(2, as_rank)
    assert len(sent) == 3
    assert sent[:2] == large


def test_documents_of_any_length_reach_every_rank() -> None:
    told = in_ranks(3, lambda group, rank: gather_documents({"rank": rank, "text": "x" * rank}, group, 3))
    assert told == [[{"rank": rank, "text": "x" * rank} for rank in range(3)]] * 3


def snapshot(step: int, *parts: Part, generation: int = 1) -> RankSnapshot:
    return RankSnapshot(step, generation, {}, {}, {part: {} for part in parts})


def quarters(*ranks: int) -> list[Part]:
    return [Part(4, rank) for rank in ranks]


def test_the_highest_step_that_is_there_in_full_is_chosen() -> None:
    told = [
        announce([snapshot(9, *quarters(0, 3)), snapshot(6, *quarters(0, 3))], 9, 0.0),
        announce([snapshot(9, *quarters(1, 0)), snapshot(6, *quarters(1, 0))], 9, 0.0),
        announce([snapshot(9, *quarters(3)), snapshot(6, *quarters(3, 2))], 8, 0.0),
        announce([], None, 0.0),
    ]
    source = choose_source(told)
    assert source is not None
    assert (source.step, source.speaker, most_finished(told)) == (6, 0, 9)
    assert sorted(source.holders) == quarters(0, 1, 2, 3)
    assert sorted(source.holders.values()) in ([0, 1, 2, 2], [0, 0, 1, 2], [0, 1, 1, 2])


def test_states_of_two_generations_are_not_mixed() -> None:
    told = [
        announce([snapshot(6, *quarters(0, 1), generation=1)], 6, 0.0),
        announce([snapshot(6, *quarters(2, 3), generation=2)], 6, 0.0),
    ]
    assert choose_source(told) is None


def test_a_row_that_is_there_in_a_part_and_in_a_share_is_sent_once() -> None:
    left = Part(2, 1)
    told = [announce([snapshot(3, Part(2, 0), *left.shares(2))], 3, 0.0), announce([snapshot(3, left)], 3, 0.0)]
    source = choose_source(told)
    assert source is not None
    assert source.holders == {Part(2, 0): 0, left: 1}


def test_half_of_what_somebody_left_is_not_enough() -> None:
    assert choose_source([announce([snapshot(3, Part(2, 0), Part(2, 1).shares(2)[0])], 3, 0.0)]) is None


def test_nobody_has_anything_at_first() -> None:
    told = [announce([], None, 0.0)] * 3
    assert (choose_source(told), most_finished(told)) == (None, 0)


def test_a_rank_sends_only_what_falls_to_it_and_only_of_that_step() -> None:
    rows = {"a": torch.zeros(1)}
    mine = [
        RankSnapshot(6, 1, {}, {}, {Part(2, 0): rows, Part(2, 1): {}}),
        RankSnapshot(9, 1, {}, {}, {Part(2, 0): {}}),
    ]
    source = Source(6, 1, {Part(2, 0): 1, Part(2, 1): 0}, 0)
    assert source.rows(mine, 1) == {Part(2, 0): rows}
