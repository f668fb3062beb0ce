"""Embeddings, cut by vocabulary and by features.

The table's rows are cut along the last of the axes of the samples, then along the others. A rank looks up the
tokens of a larger block of samples in its part of the vocabulary, and the sums of all parts are scattered to the
ranks' own samples. Indices that all samples share, such as positions, are looked up in a table that is cut by
features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from oakum_worker.parallel.tensor.placements import Split
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, arranged, closed, refuse, spread_parameter
from oakum_worker.parallel.tensor.wires import gather_then_scatter, scatter_then_gather


def embedding(
    work: Work,
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rule for `F.embedding`, for indices of the batch or indices that all samples share: returns the rows of
    the table as a spread tensor. Collective among the grid's ranks. `padding_idx` is a row of the whole table.
    Raises `TaskError` for options that cannot be computed on a grid."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        refuse(F.embedding, "with max_norm, scale_grad_by_freq or sparse")
    if not isinstance(weight, nn.Parameter):
        refuse(F.embedding, "in a table that is not a parameter")
    assert isinstance(weight, nn.Parameter)
    if isinstance(input, Spread) and any(split is not None for split in input.splits):
        return _by_vocabulary(work, input, weight, padding_idx)
    return _shared(work, input, weight, padding_idx)


def _by_vocabulary(work: Work, tokens: Spread, weight: nn.Parameter, padding_idx: int | None) -> Spread:
    grid, wires = work.wires.grid, work.wires
    rows, columns = grid.rows("A"), grid.columns("A")
    shape = work.placing.placement_of(weight)
    whole = shape.shape if shape is not None else tuple(weight.shape)
    splits = Split((rows[-1], *rows[:-1]), whole[0]), Split(columns, whole[1])
    table = spread_parameter(work, weight, splits, "embedding")
    if not isinstance(table, Spread) or table.splits != splits:
        refuse(F.embedding, "in a parameter that other functions have used before, in another way")
    assert isinstance(table, Spread)
    dim = next(number for number, split in enumerate(tokens.splits) if split is not None)
    units = tokens.splits[dim].units  # type: ignore[union-attr]
    wider = tuple(Split(rows[:-1], units) if number == dim else None for number in range(tokens.ndim))
    indices = arranged(tokens, wider, rows[:-1]).local
    held = wires.own(whole[0], rows[-1:])
    local = (
        gather_then_scatter(wires, table.local, work.pieces(splits[0], 0, whole[0])) if rows[:-1] else table.local
    )
    rows_found = _look_up(indices, local, held, _row(padding_idx, whole[0]))
    of_rows = Split(rows, units)
    rows_found = scatter_then_gather(wires, rows_found, work.pieces(of_rows, dim, tokens.shape[dim]))
    of_result = [of_rows if number == dim else None for number in range(tokens.ndim)]
    return Spread(rows_found, (*tokens.shape, whole[1]), (*of_result, splits[1]), work)


def _look_up(indices: torch.Tensor, table: torch.Tensor, held: range, padding: int | None) -> torch.Tensor:
    """The table's rows for the indices in `held`, which are the rows that `table` has; rows of zeros for all other
    indices. `padding` is a row of the whole table, or None."""
    if not len(held):
        return table.new_zeros(*indices.shape, table.shape[1]) + table.sum(0) * 0
    inside = (indices >= held.start) & (indices < held.stop)
    local = (indices - held.start).clamp(0, len(held) - 1)
    own_padding = padding - held.start if padding is not None and padding in held else None
    found = F.embedding(local, table, own_padding)
    return found if bool(inside.all()) else found * inside.unsqueeze(-1).to(found.dtype)


def _shared(work: Work, input: torch.Tensor, weight: nn.Parameter, padding_idx: int | None) -> torch.Tensor:
    """The table's rows for indices that all samples share, such as positions; cut by features."""
    columns = work.wires.grid.columns("A")
    table = spread_parameter(work, weight, (None, Split(columns, weight.shape[1])), "table for all samples")
    indices = input.local if isinstance(input, Spread) else input
    if not isinstance(table, Spread):
        return F.embedding(indices, table, padding_idx)
    of_rows, of_columns = table.splits
    if of_rows is not None:
        table = arranged(table, (None, of_columns), of_columns.axes if of_columns is not None else ())
    rows = F.embedding(indices, table.local, padding_idx)
    return closed(rows, (*input.shape, table.shape[1]), (*(None,) * input.ndim, of_columns), work)


def _row(padding_idx: int | None, num_rows: int) -> int | None:
    return padding_idx if padding_idx is None or padding_idx >= 0 else num_rows + padding_idx


RULES[F.embedding] = embedding
