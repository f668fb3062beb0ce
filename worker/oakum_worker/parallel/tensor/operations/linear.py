"""Linear layers: the 3-D product of arXiv:2105.14450, of which the 1-D product is the case of axes of length 1.

For Y = X W^T with X in layout A, X gathered along j, W along i, and the product's partial sums scattered along l
give Y in layout B; from B to A, j and l change places. A 2-D grid multiplies as SUMMA does (van de Geijn and
Watts, 1997), with all panels gathered at once instead of one after the other, which moves as many elements and
needs more memory: X gathered along j, W along i, no sums; or, for a W that is cut as an embedding's table is, W
along i and the sums scattered along j. Backward, what was gathered is scattered, and what was scattered is
gathered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from oakum_worker.parallel.tensor.grids import LayoutName
from oakum_worker.parallel.tensor.placements import Split
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, arranged, block, refuse, spread_parameter
from oakum_worker.parallel.tensor.wires import Pieces, Wires


class _Moves(NamedTuple):
    """The communication of one product: the pieces of the inputs and of the weight that are gathered, and those
    of the outputs that are scattered (None: nothing)."""

    wires: Wires
    inputs: Pieces | None
    weight: Pieces | None
    outputs: Pieces | None
    keep_gathered: bool

    def all_x(self, x: torch.Tensor) -> torch.Tensor:
        """What a product needs of the inputs, from what was saved of them."""
        return x if self.keep_gathered else self.wires.gather(x, self.inputs)

    def all_w(self, w: torch.Tensor) -> torch.Tensor:
        """What a product needs of the weight, from what was saved of it."""
        return w if self.keep_gathered else self.wires.gather(w, self.weight)


def linear(work: Work, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Rule for `F.linear` on spread tensors: returns the product, with the bias added, as a spread tensor of
    which each rank computes its block. Collective among the grid's ranks."""
    x = _as_rows(work, input)
    w = _weight(work, weight, _layout(work, x, weight))
    output = multiply(work, x, w, (weight,) if isinstance(weight, nn.Parameter) else ())
    return output if bias is None else add_bias(work, output, bias)


def multiply(work: Work, x: Spread, w: Spread, makers: tuple[nn.Parameter, ...] = ()) -> Spread:
    """The product x w^T of activations (..., k) and a weight (n, k), as a spread tensor. Collective among the
    grid's ranks. `makers` are the parameters to remember as those that made the result."""
    grid, kind = work.wires.grid, work.wires.grid.kind
    of_n, of_k = w.splits
    assert of_n is not None
    assert of_k is not None
    layout: LayoutName = "A" if kind == "2d" or of_k.axes[0] == "l" else "B"
    rows, columns = grid.rows(layout), of_k.axes[:1] if kind != "2d" else ("j",)
    row_dim = _row_dim(x)
    x = arranged(x, _activation_splits(x, row_dim, rows, columns), (*rows, *columns))
    if of_n.axes[-1] == "i":
        w_gather, split_n = work.pieces(of_n, 0, w.shape[0]), Split(of_n.axes[:-1] or ("j",), of_n.units)
    else:
        w_gather, split_n = work.pieces(of_k, 1, w.shape[1]), of_n
    of_rows, of_columns = x.splits[row_dim], x.splits[-1]
    assert of_rows is not None
    assert of_columns is not None
    shape = (*x.shape[:-1], w.shape[0])
    out: LayoutName = "B" if layout == "A" else "A"
    if kind != "2d":
        after = Split(grid.rows(out), of_rows.units)
        x_gather, scatter = (
            work.pieces(of_rows, row_dim, x.shape[row_dim]),
            work.pieces(after, row_dim, shape[row_dim]),
        )
    elif of_k.axes == ("i",):
        after, scatter = of_rows, None
        x_gather = work.pieces(of_columns, x.ndim - 1, x.shape[-1])
    else:
        after, x_gather = of_rows, None
        scatter = work.pieces(split_n, x.ndim - 1, shape[-1])
    moves = _Moves(work.wires, x_gather, w_gather, scatter, work.keep_gathered)
    local = _Product.apply(*_cast(x.local, w.local), moves)
    splits = [None] * (x.ndim - 1) + [split_n]
    splits[row_dim] = after
    return Spread(local, shape, tuple(splits), work, makers)


def add_bias(work: Work, output: Spread, bias: torch.Tensor) -> Spread:
    """The layer's output with its bias added; of the bias each rank uses the part for its own columns."""
    own = block(work, bias, output.shape, output.splits, "bias")
    makers = (*output.makers, bias) if isinstance(bias, nn.Parameter) else ()
    return Spread(output.local + own.to(output.local.dtype), output.shape, output.splits, work, makers)


def weight_splits(work: Work, layout: LayoutName, shape: torch.Size | tuple[int, ...]) -> tuple[Split, Split]:
    """The splits of both dimensions of a weight (n, k), for a linear layer whose input is in `layout`."""
    n, k = shape
    if work.wires.grid.kind == "2d":
        return Split(("j",), n), Split(("i",), k)
    if layout == "A":
        return Split(("j",), n), Split(("l", "i"), k)
    return Split(("l",), n), Split(("j", "i"), k)


def layout_of(work: Work, x: Spread) -> LayoutName:
    """The layout in which an activation already is, or to which it is nearest: `B` if its columns are cut along j
    on a 1-D or 3-D grid, else `A`."""
    split = x.splits[-1]
    if work.wires.grid.kind == "2d" or split is None or split.axes != ("j",):
        return "A"
    return "B"


def _layout(work: Work, x: Spread, weight: torch.Tensor) -> LayoutName:
    placement = work.placing.placement_of(weight) if isinstance(weight, nn.Parameter) else None
    of_k = placement.splits[1] if placement is not None and placement.axes else None
    if of_k is None:
        return layout_of(work, x)
    return "B" if of_k.axes[0] == "j" and work.wires.grid.kind != "2d" else "A"


def _weight(work: Work, weight: torch.Tensor, layout: LayoutName) -> Spread:
    splits = weight_splits(work, layout, weight.shape)
    if isinstance(weight, nn.Parameter):
        spread = spread_parameter(work, weight, splits, f"linear weight, {layout}")
        if isinstance(spread, Spread):
            _, of_k = spread.splits
            if of_k is None:
                refuse(F.linear, "by a parameter that other functions use, too, in another way")
            return spread
        weight = spread
    shape = tuple(weight.shape)
    return Spread(block(work, weight, shape, splits, ""), shape, splits, work)


def _as_rows(work: Work, input: torch.Tensor) -> Spread:
    """The input as a spread tensor. Raises `TaskError` if it has fewer than two dimensions."""
    if input.ndim < 2:
        refuse(F.linear, f"of a tensor of shape {tuple(input.shape)}: give it a dimension of samples")
    return input if isinstance(input, Spread) else Spread(input, input.shape, (None,) * input.ndim, work)


def _row_dim(x: Spread) -> int:
    """The dimension along which the product's rows are cut: that of the samples, else the first."""
    return next((dim for dim, split in enumerate(x.splits[:-1]) if split is not None), 0)


def _activation_splits(x: Spread, row_dim: int, rows: Any, columns: Any) -> tuple[Split | None, ...]:
    have, last = x.splits[row_dim], x.splits[-1]
    splits: list[Split | None] = [None] * x.ndim
    splits[row_dim] = Split(rows, have.units if have is not None else x.shape[row_dim])
    units = last.units if last is not None and last.axes == columns and last.fold == 1 else x.shape[-1]
    splits[-1] = Split(columns, units)
    return tuple(splits)


def _cast(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both tensors in autocast's type if autocast is on, as torch's own product would convert them; else
    unchanged."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        return x.to(dtype), w.to(dtype)
    return x, w


class _Product(torch.autograd.Function):
    """Autograd function for x w^T of one rank's blocks, with the communication that `_Moves` names; its backward
    pass communicates in reverse."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, moves: _Moves) -> torch.Tensor:
        if moves.keep_gathered:
            x, w = moves.wires.gather(x, moves.inputs), moves.wires.gather(w, moves.weight)
        ctx.moves = moves
        ctx.save_for_backward(x, w)
        output = moves.wires.scatter(moves.all_x(x) @ moves.all_w(w).t(), moves.outputs)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        moves: _Moves = ctx.moves
        x, w = ctx.saved_tensors
        wires = moves.wires
        needs_x, needs_w, _ = ctx.needs_input_grad
        dy = wires.gather(gradients[0], moves.outputs)
        dx = dw = None
        # What is gathered here is freed before the product is scattered.
        if needs_x:
            dx = wires.scatter(dy @ moves.all_w(w), moves.inputs)
        if needs_w:
            dw = wires.scatter(dy.flatten(0, -2).t() @ moves.all_x(x).flatten(0, -2), moves.weight)
        return dx, dw, None


RULES[F.linear] = linear
