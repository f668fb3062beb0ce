"""Blocks of tensors, with gaps or without: what is in them, and how they travel and are stored."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from cells import each
from num_examples import scaled
from oakum_worker.checkpoint import dcp_rows
from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.holdings import Holdings, Part, Place, SplitTensor, by_part
from oakum_worker.parallel.reshard import PartLocations, exchange
from training_ranks import in_ranks


@st.composite
def spans(draw: Any, length: int) -> tuple[range, ...]:
    bounds = sorted(draw(st.lists(st.integers(0, length), max_size=6)))
    return tuple(range(a, b) for a, b in itertools.pairwise(bounds) if a < b)[::2]


@st.composite
def blocks(draw: Any, shape: tuple[int, ...]) -> Block:
    return Block(tuple(draw(spans(size)) for size in shape))


def elements(block: Block) -> list[tuple[int, ...]]:
    """The indices of a block's elements, in the order that they have in memory."""
    return list(itertools.product(*([index for range_ in span for index in range_] for span in block.spans)))


@given(blocks((7, 9)), st.integers(1, 4))
def test_shares_of_a_block_have_each_of_its_elements_once(block: Block, count: int) -> None:
    shares = [block.share(index, count) for index in range(count)]
    assert [element for share in shares for element in elements(share)] == elements(block)
    assert sum(share.num_elements for share in shares) == block.num_elements == len(elements(block))


@given(blocks((7, 9)), blocks((7, 9)))
def test_what_two_blocks_have_in_common_is_found_in_the_memory_of_both(first: Block, second: Block) -> None:
    whole = torch.arange(63).reshape(7, 9)
    memories = [torch.tensor([int(whole[e]) for e in elements(b)]).reshape(b.shape) for b in (first, second)]
    found = []
    for overlap in first.common(second):
        assert torch.equal(memories[0][overlap.first], memories[1][overlap.second])
        found += memories[0][overlap.first].flatten().tolist()
    assert sorted(found) == [int(whole[e]) for e in elements(first) if e in set(elements(second))]


@given(blocks((7, 9)))
def test_boxes_have_each_element_once_and_say_where_it_is_in_memory(block: Block) -> None:
    whole = torch.arange(63).reshape(7, 9)
    memory = torch.tensor([int(whole[e]) for e in elements(block)]).reshape(block.shape)
    count = 0
    for box in block.boxes():
        place = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
        assert torch.equal(whole[place], memory[box.memory])
        count += memory[box.memory].numel()
    assert count == block.num_elements
    assert bool(block) == (count > 0)


def thirds(length: int, number: int, count: int) -> tuple[range, ...]:
    """As fused projections are cut: a share of each third."""
    third = length // 3
    return tuple(
        range(k * third + third * number // count, k * third + third * (number + 1) // count) for k in range(3)
    )


@dataclass(frozen=True)
class Cuts:
    """A tensor's blocks: thirds of its rows by one coordinate, its columns by another."""

    shape: tuple[int, int]

    def block(self, grid: str, number: int) -> Block | None:
        rows, columns = map(int, grid.split("x"))
        if number >= rows * columns:
            return None
        row, column = divmod(number, columns)
        width = self.shape[1]
        ranges = (range(width * column // columns, width * (column + 1) // columns),)
        return Block((thirds(self.shape[0], row, rows), ranges))


def parts_of(grid: str) -> list[Part]:
    rows, columns = map(int, grid.split("x"))
    return [Part(rows * columns, number, grid=grid) for number in range(rows * columns)]


SHAPES = [(12, 8), (6, 5), (12, 4), (240, 130)]
TENSORS = [SplitTensor(f"t{i}", s, torch.float64, grids=Cuts(s)) for i, s in enumerate(SHAPES)]


def cut(tensor: SplitTensor, part: Part) -> torch.Tensor:
    whole = torch.arange(tensor.whole.num_elements, dtype=tensor.dtype).reshape(tensor.shape)
    rows, columns = (torch.tensor([i for range_ in span for i in range_]) for span in part.block(tensor).spans)
    return whole[rows][:, columns].contiguous()


def rows_of(part: Part) -> dict[str, torch.Tensor]:
    return {tensor.path: cut(tensor, part) for tensor in TENSORS}


@each(("before", "now"), [("2x2", "1x1"), ("1x1", "2x2"), ("2x2", "1x4"), ("2x1", "1x2")])
@each("batch_bytes", [1, 1 << 20])
def test_blocks_go_from_one_grid_to_another_whoever_holds_them(before: str, now: str, batch_bytes: int) -> None:
    held = [(share, k % 4) for k, part in enumerate(parts_of(before)) for share in part.shares(1 + k % 2)]
    wanted = list(enumerate(parts_of(now)))

    def as_rank(group: dist.ProcessGroup, rank: int) -> None:
        mine = {part: rows_of(part) for part, holder in held if holder == rank}
        needed = {
            part: {t.path: t.empty(part.block(t)) for t in TENSORS} for holder, part in wanted if holder == rank
        }
        locations = PartLocations([(part, holder) for holder, part in wanted], needed)
        exchange(TENSORS, PartLocations(held, mine), locations, group, rank, batch_bytes=batch_bytes)
        for part, found in needed.items():
            assert {path: t.tolist() for path, t in found.items()} == {
                path: t.tolist() for path, t in rows_of(part).items()
            }

    in_ranks(4, as_rank)


@settings(max_examples=scaled(6), deadline=None)
@given(st.sampled_from(["1x1", "2x2", "2x1"]), st.sampled_from(["1x1", "1x3", "2x2"]))
def test_a_checkpoint_of_blocks_is_read_into_the_blocks_of_any_grid(before: str, now: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        holdings = Holdings(tuple((part,) for part in parts_of(before)))
        whole = {"count": torch.tensor(3.0)}
        results = [
            dcp_rows.write_rows(
                folder, TENSORS, Place(holdings, rank), rows_of(*parts), whole if rank == 0 else {}
            )
            for rank, parts in enumerate(holdings.by_rank)
        ]
        described = [dcp_rows.describe(result) for result in results]
        dcp_rows.join_files(folder, TENSORS, holdings, whole, described, results[0])
        for rank, part in enumerate(parts_of(now)):
            place = Place(Holdings(tuple((part,) for part in parts_of(now))), rank)
            rows = {t.path: t.empty(part.block(t)).fill_(-1) for t in TENSORS}
            count = {"count": torch.zeros(())}
            dcp_rows.read_rows(folder, TENSORS, place, rows, count)
            assert all(torch.equal(rows[path], expected) for path, expected in rows_of(part).items())
            assert count["count"] == 3
        # A replicated trainer reads whole tensors, and knows nothing of blocks.
        plain = {t.path: torch.zeros(t.shape, dtype=t.dtype) for t in TENSORS}
        dcp_rows.read_rows(folder, [], Place(Holdings.one_each(1), 0), {}, plain)
        assert all(torch.equal(plain[t.path], cut(t, parts_of("1x1")[0])) for t in TENSORS)


def test_a_part_of_a_grid_has_nothing_of_tensors_that_the_grid_does_not_cut() -> None:
    part = parts_of("2x2")[3]
    other = SplitTensor("other", (4, 2), torch.float32)
    assert not part.block(other)
    assert by_part([part], [other, TENSORS[0]], {"t0": torch.zeros(1)}) == {part: {"t0": torch.zeros(1)}}
    assert Part(*part.to_json()) == part  # type: ignore[arg-type]
