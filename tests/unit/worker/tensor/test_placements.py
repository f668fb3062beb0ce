"""Ranks of a grid, and the blocks that they have."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from cells import each
from oakum_worker.parallel.tensor.conversion import Conversion, put, take
from oakum_worker.parallel.tensor.grids import Grid, cut
from oakum_worker.parallel.tensor.placements import Placement, Split

GRIDS = [Grid(kind, side) for kind in ("1d", "2d", "3d") for side in (1, 2, 3)]


def weight(rows: int = 36, columns: int = 36, fold: int = 1) -> Placement:
    units = rows // fold
    return Placement((rows, columns), (Split(("j",), units, fold), Split(("l", "i"), columns)), "linear weight")


@each("grid", GRIDS, ids=str)
def test_ranks_are_numbered_by_i_then_j_then_l(grid: Grid) -> None:
    lengths = grid.lengths
    for rank in range(grid.num_ranks):
        place = grid.coordinates(rank)
        assert rank == place["i"] + lengths["i"] * (place["j"] + lengths["j"] * place["l"])
        assert grid.rank_at(place) == rank


def test_groups_of_a_cube_are_those_of_the_paper() -> None:
    cube = Grid("3d", 2)
    assert cube.group_of(5, ("i",)) == [4, 5]  # weight
    assert cube.group_of(5, ("j",)) == [5, 7]  # input
    assert cube.group_of(5, ("l",)) == [1, 5]  # output
    assert cube.group_of(5, ("l", "i")) == [0, 1, 4, 5]
    assert cube.group_of(5, ("i", "l")) == [0, 4, 1, 5]


@each("side", [2, 3])
@each("fold", [1, 3])
def test_blocks_of_a_weight_cover_it_once_in_equal_parts(side: int, fold: int) -> None:
    grid, placement = Grid("3d", side), weight(fold=fold)
    whole = torch.arange(36 * 36).view(36, 36)
    blocks = [take(whole, placement.block(grid, rank)) for rank in range(grid.num_ranks)]
    assert all(block.numel() * side**3 == whole.numel() for block in blocks)
    assert sorted(itertools.chain(*(block.flatten().tolist() for block in blocks))) == list(range(36 * 36))
    again = torch.zeros_like(whole)
    for rank, block in enumerate(blocks):
        put(again, placement.block(grid, rank), block)
    assert torch.equal(again, whole)


def test_a_fused_projection_is_cut_within_queries_keys_and_values() -> None:
    placement = Placement((12,), (Split(("j",), 4, fold=3),), "bias")
    assert take(torch.arange(12), placement.block(Grid("3d", 2), 2)).tolist() == [2, 3, 6, 7, 10, 11]


def test_what_does_not_divide_is_cut_into_blocks_that_differ_by_one() -> None:
    blocks = [cut(11, [(2, j), (2, i)]) for j in range(2) for i in range(2)]
    assert list(map(len, blocks)) == [2, 3, 3, 3]
    assert list(itertools.chain(*blocks)) == list(range(11))


def test_a_local_model_has_blocks_under_the_same_names_and_stays_tied() -> None:
    model = nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 12, bias=False))
    model[1].weight = model[0].weight
    placement = Placement((12, 4), (Split(("j", "i"), 12), Split(("l",), 4)), "embedding")
    conversion = Conversion(Grid("3d", 2), {"0.weight": placement}, ())
    local = conversion.local(model, 5, model.state_dict())
    assert [name for name, _ in local.named_parameters()] == ["0.weight"]
    assert local[0].weight is local[1].weight
    assert local[0].weight.shape == (3, 2)
    assert torch.equal(local[0].weight, model[0].weight[3:6, 2:])
    assert model[0].weight.shape == (12, 4)
