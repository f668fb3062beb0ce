"""A layer's forward and backward pass by fused loops.

Kept for the backward pass are what the layer was given, its outputs and, for an LSTM, its cells: gates are
computed again. Their gradients are needed at once only for some steps, from which the gradients of weights and
inputs are then summed by matrix products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from oakum_worker.recurrent.design_space import GATES, Cell, LoopDesign
from oakum_worker.recurrent.kernels import Kernels, LoopArguments
from oakum_worker.recurrent.packing import packed
from oakum_worker.torch_internals import onednn_computes

_ROWS_OF_A_PRODUCT = 64
"""Rows of gates' gradients that a backward pass holds at once. With few, products read weights for little."""


@dataclass(frozen=True)
class TimeSteps:
    """Which rows of the data belong to which time step, longest sequences first."""

    sizes: torch.Tensor
    """Rows of each step, int64 on the CPU; they never grow."""
    offsets: torch.Tensor = field(init=False)
    """Where the rows of each step begin and, at the end, how many there are: int64."""

    number: int = field(init=False)
    """How many time steps there are."""
    batch: int = field(init=False)
    """How many sequences there are."""
    is_even: bool = field(init=False)
    """Whether all sequences are equally long."""

    def __post_init__(self) -> None:
        offsets = torch.zeros(len(self.sizes) + 1, dtype=torch.int64)
        torch.cumsum(self.sizes, 0, out=offsets[1:])
        fields = {"offsets": offsets, "number": len(self.sizes), "batch": int(self.sizes[0])}
        fields["is_even"] = int(self.sizes[-1]) == fields["batch"]
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def last_rows(self) -> torch.Tensor:
        """For each sequence, the row of its last time step."""
        lengths = (self.sizes.unsqueeze(1) > torch.arange(self.batch)).sum(0)
        return self.offsets[lengths - 1] + torch.arange(self.batch)

    def rows_before(self, *, reverse: bool) -> torch.Tensor:
        """For each row, the number of the row of the same sequence's preceding step; of the following step if
        `reverse`. For a sequence's first computed step it is the number of rows plus the sequence's number, since
        initial states are appended to the rows."""
        total = int(self.offsets[-1])
        before = torch.empty(total, dtype=torch.int64)
        for t in range(self.number):
            begin, size = int(self.offsets[t]), int(self.sizes[t])
            other = t + 1 if reverse else t - 1
            size_before = int(self.sizes[other]) if 0 <= other < self.number else 0
            rows = torch.arange(size)
            from_other = rows + int(self.offsets[other]) if size_before else rows
            before[begin : begin + size] = torch.where(rows < size_before, from_other, total + rows)
        return before


@dataclass(frozen=True)
class Weights:
    """The parameters of one direction of a layer, in torch's order of gates."""

    by_input: torch.Tensor
    by_state: torch.Tensor
    biases: tuple[torch.Tensor, ...]  # of the input's product and of the state's, or none


@dataclass(frozen=True)
class LayerPlan:
    """How a layer is to be computed, apart from its tensors: the compiled loops, the kind of cell, the
    sequences' time steps, the choice of the design space, and the number of directions."""

    kernels: Kernels
    cell: Cell
    steps: TimeSteps
    choice: LoopDesign
    directions: int


def run_layer(
    plan: LayerPlan, data: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor | None, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute one layer: returns its outputs, (rows, directions * hidden), its last states and, of an LSTM, its
    last cells. For a GRU, which has no cells, the last one is an empty tensor.

    `data` is (rows, input); `h0` and `c0` (None for a GRU) are (directions, batch, hidden); `weights` are those of
    each direction in torch's order. Differentiable.
    """
    tensors = [data, h0, *weights] if c0 is None else [data, h0, c0, *weights]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _FusedLayer.apply(plan, data, h0, c0, *weights)
    y, h_n, c_n, _ = _forward(plan, data, h0, c0, weights, keeps_cells=False)
    return y, h_n, c_n


class _FusedLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: LayerPlan,
        data: torch.Tensor,
        h0: torch.Tensor,
        c0: torch.Tensor | None,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, h_n, c_n, cells = _forward(plan, data, h0, c0, weights, keeps_cells=True)
        ctx.plan, ctx.has_cells = plan, c0 is not None
        states = (h0,) if c0 is None else (h0, c0)
        ctx.save_for_backward(data, y, *states, *cells, *weights)
        if c0 is None:
            ctx.mark_non_differentiable(c_n)
        return y, h_n, c_n

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, dh_n: torch.Tensor, dc_n: torch.Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, dy, dh_n, dc_n)
        return _LayerBackward(ctx, dy, dh_n, dc_n).gradients()


def _forward(
    plan: LayerPlan,
    data: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    *,
    keeps_cells: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    data, h0 = data.contiguous(), h0.contiguous()
    rows, hidden = data.shape[0], h0.shape[2]
    y = data.new_empty(rows, plan.directions * hidden)
    h_n = torch.empty_like(h0)
    cells: list[torch.Tensor] = []
    last = None if plan.steps.is_even else plan.steps.last_rows()
    for direction, one in enumerate(by_direction(weights, plan.directions)):
        call = _Call(plan, plan.choice, data, one, hidden, direction)
        # Where there is a backward pass, weights change from one forward pass to the next in any case.
        call.pack(again=keeps_cells)
        call.fill(y=y[:, direction * hidden :], h0=h0[direction])
        call.scratch(min(plan.choice.tile, plan.steps.number) * plan.steps.batch)
        if c0 is not None:
            cells.append(
                data.new_empty(rows, hidden) if keeps_cells else c0[direction].clone(memory_format=_DENSE)
            )
            call.fill(cells=cells[-1], c0=c0[direction].contiguous())
        call.arguments.keeps_cells = int(keeps_cells)
        call.run()
        own = y[:, direction * hidden : (direction + 1) * hidden]
        h_n[direction] = _last(own, plan.steps, last, reverse=direction == 1)
    if c0 is None:
        return y, h_n, data.new_empty(0), cells
    c_n = torch.stack(
        [_last(of, plan.steps, last, reverse=i == 1) for i, of in enumerate(cells)] if keeps_cells else cells
    )
    return y, h_n, c_n, cells


_DENSE = torch.contiguous_format


def _last(rows: torch.Tensor, steps: TimeSteps, last: torch.Tensor | None, *, reverse: bool) -> torch.Tensor:
    if reverse:
        return rows[: steps.batch]
    return rows[-steps.batch :] if last is None else rows[last]


def run_by_torch(
    cell: Cell,
    steps: TimeSteps,
    data: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    *,
    directions: int,
    training: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute one layer by torch's own function. Takes and returns what `run_layer` does, except that a GRU's
    result has no last, empty tensor. Computes under autocast on every processor, which torch's LSTM does not."""
    function: Any = torch.lstm if cell == "lstm" else torch.gru
    states = h0 if c0 is None else (h0, c0)
    has_biases = len(weights) // directions >= 4
    settings = (list(weights), has_biases, 1, 0.0, training, directions == 2)
    is_autocast = data.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    refused = is_autocast and not onednn_computes(
        torch.get_autocast_dtype("cpu"), with_gradients=torch.is_grad_enabled()
    )
    without_onednn = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
    with without_onednn if refused else contextlib.nullcontext():
        if not steps.is_even:
            return tuple(function(data, steps.sizes, states, *settings))
        output, *last = function(data.reshape(steps.number, steps.batch, -1), states, *settings, False)
        return output.reshape(data.shape[0], -1), *last


def _differentiable_gradients(
    ctx: Any, dy: torch.Tensor, dh_n: torch.Tensor, dc_n: torch.Tensor
) -> tuple[Any, ...]:
    """The gradients of a layer's backward pass in a form that can be differentiated again: torch's own function
    repeats the forward pass."""
    plan: LayerPlan = ctx.plan
    data, _, *rest = ctx.saved_tensors
    h0, c0 = (rest[0], rest[1]) if ctx.has_cells else (rest[0], None)
    weights = rest[2 + plan.directions :] if ctx.has_cells else rest[1:]
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        outputs = run_by_torch(
            plan.cell, plan.steps, data, h0, c0, weights, directions=plan.directions, training=True
        )
    inputs = [data, h0, c0, *weights]
    wanted = [tensor for tensor, needed in zip(inputs, ctx.needs_input_grad[1:], strict=True) if needed]
    slopes = (dy, dh_n, dc_n)[: len(outputs)]
    gradients = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=True, allow_unused=True))
    return None, *(next(gradients) if needed else None for needed in ctx.needs_input_grad[1:])


def by_direction(weights: Sequence[torch.Tensor], directions: int) -> list[Weights]:
    """The parameters of each direction: splits a layer's `weights`, two matrices and two or no biases for each
    direction in torch's order, into one `Weights` per direction. Projections are not supported."""
    each = len(weights) // directions
    own = [weights[i * each : (i + 1) * each] for i in range(directions)]
    return [Weights(one[0], one[1], tuple(one[2:4])) for one in own]


class _Call:
    """One call of the loops: its arguments, and the tensors that they point to, which it keeps alive."""

    def __init__(
        self,
        plan: LayerPlan,
        choice: LoopDesign,
        data: torch.Tensor,
        weights: Weights,
        hidden: int,
        direction: int,
    ) -> None:
        self._plan, self._dtype = plan, data.dtype
        self._alive: list[torch.Tensor] = []
        self._gates = GATES[plan.cell]
        self._lanes = plan.kernels.lanes(data.dtype)
        self._tiles = -(-hidden // self._lanes)
        self.arguments = LoopArguments(
            steps=plan.steps.number,
            batch=plan.steps.batch,
            hidden=hidden,
            input=data.shape[1],
            x_stride=data.shape[1],
            y_stride=plan.directions * hidden,
            reverse=direction,
            threads=choice.threads,
            unit_tiles=choice.unit_tiles,
            unroll=choice.unroll,
            tile=choice.tile,
            serpentine=int(choice.serpentine),
        )
        self.fill(batch_sizes=plan.steps.sizes, offsets=plan.steps.offsets, x=data)
        if weights.biases:
            by_input, by_state = (bias.detach().contiguous() for bias in weights.biases)
            self.fill(bias_x=by_input, bias_h=by_state)
        self._weights = weights

    @property
    def threads(self) -> int:
        """Number of threads that the loops will use: as chosen, but no more than there are vectors of hidden
        units."""
        return min(self.arguments.threads, self._tiles)

    def fill(self, **pointers: torch.Tensor) -> None:
        """Point the named fields of the arguments to these tensors, and keep the tensors alive as long as the
        call."""
        for name, tensor in pointers.items():
            setattr(self.arguments, name, tensor.data_ptr())
            self._alive.append(tensor)

    def pack(self, *, again: bool) -> None:
        """Point the arguments to packed copies of the weights; with `again` the copies are made anew."""
        settings = (self._gates, self.arguments.hidden, self.arguments.threads)
        by_input, by_state = self._weights.by_input, self._weights.by_state
        self.fill(packed_x=packed(self._plan.kernels, by_input, *settings, again=again))
        self.fill(packed_h=packed(self._plan.kernels, by_state, *settings, again=again))

    def scratch(self, rows: int) -> None:
        """Allocate memory for the inputs' products of `rows` rows, if they are computed ahead of the time
        steps."""
        if self.arguments.tile > 1:
            numbers = rows * self._tiles * self._gates * self._lanes
            self.fill(scratch=torch.empty(numbers, dtype=self._dtype))

    def run(self, *, back: bool = False) -> None:
        """Compute the forward pass or, with `back`, a part of the backward pass. All tensors have to be contiguous
        and of the call's type."""
        self._plan.kernels.run(self.arguments, is_lstm=self._plan.cell == "lstm", dtype=self._dtype, back=back)


class _LayerBackward:
    """Computes the gradients of a layer's inputs and parameters, for one backward pass."""

    def __init__(self, ctx: Any, dy: torch.Tensor, dh_n: torch.Tensor, dc_n: torch.Tensor) -> None:
        self._plan: LayerPlan = ctx.plan
        saved = list(ctx.saved_tensors)
        data, self._y, self._h0 = saved[0], saved[1], saved[2].contiguous()
        self._data = data.contiguous()
        after = 4 if ctx.has_cells else 3
        self._c0 = saved[3].contiguous() if ctx.has_cells else None
        self._cells = saved[after : after + self._plan.directions] if ctx.has_cells else []
        self._weights = by_direction(saved[after + len(self._cells) :], self._plan.directions)
        self._dy = dy.contiguous()
        self._dh, self._dc = dh_n.clone(memory_format=_DENSE), dc_n.clone(memory_format=_DENSE)
        needed = ctx.needs_input_grad
        self._dx = torch.zeros_like(self._data) if needed[1] else None
        self._needed = needed[4:]

    def gradients(self) -> tuple[Any, ...]:
        """Compute the gradients: one for each argument of the forward pass, None where none is needed."""
        gradients = [
            gradient for direction in range(self._plan.directions) for gradient in self._direction(direction)
        ]
        wanted = [gradient if needed else None for gradient, needed in zip(gradients, self._needed, strict=True)]
        return None, self._dx, self._dh, self._dc if self._c0 is not None else None, *wanted

    def _direction(self, direction: int) -> list[torch.Tensor]:
        plan, weights = self._plan, self._weights[direction]
        hidden, columns = self._h0.shape[2], weights.by_input.shape[0]
        steps_at_once = min(max(1, -(-_ROWS_OF_A_PRODUCT // plan.steps.batch)), plan.steps.number)
        room = steps_at_once * plan.steps.batch
        by_x = self._data.new_empty(room, columns)
        by_h = by_x if plan.cell == "lstm" else torch.empty_like(by_x)
        call = self._call(direction, by_x, by_h, room)
        sums: list[torch.Tensor] = []
        states = _StatesBefore(plan.steps, self._y, self._h0, direction, hidden)
        for last in range(plan.steps.number, 0, -steps_at_once):
            first = max(0, last - steps_at_once)
            call.arguments.first, call.arguments.last = first, last
            call.run(back=True)
            begin, end = self._rows(direction, first, last)
            rows = slice(begin, end)
            gradients = self._products(
                by_x[: end - begin], by_h[: end - begin], states.rows(begin, end), rows, weights
            )
            sums = [one.add_(other) for one, other in zip(sums, gradients, strict=True)] if sums else gradients
        return sums

    def _call(self, direction: int, by_x: torch.Tensor, by_h: torch.Tensor, room: int) -> _Call:
        plan, hidden = self._plan, self._h0.shape[2]
        call = _Call(plan, plan.choice, self._data, self._weights[direction], hidden, direction)
        begin = direction * hidden
        call.pack(again=False)
        call.fill(y=self._y[:, begin:], dy=self._dy[:, begin:], h0=self._h0[direction], dh=self._dh[direction])
        call.fill(dgates_x=by_x, dgates_h=by_h)
        call.fill(partial=by_x.new_empty(2 * call.threads * plan.steps.batch * hidden))
        call.scratch(room)
        if self._c0 is not None:
            call.fill(cells=self._cells[direction], c0=self._c0[direction], dc=self._dc[direction])
            call.arguments.keeps_cells = 1
        return call

    def _rows(self, direction: int, first: int, last: int) -> tuple[int, int]:
        """(first row, row after the last) of the time steps from `first` to before `last`. Steps are counted in
        the order of computing, which in direction 1 is backwards."""
        offsets, number = self._plan.steps.offsets, self._plan.steps.number
        if direction == 1:
            first, last = number - last, number - first
        return int(offsets[first]), int(offsets[last])

    def _products(
        self, by_x: torch.Tensor, by_h: torch.Tensor, before: torch.Tensor, rows: slice, weights: Weights
    ) -> list[torch.Tensor]:
        """The parameters' gradients from some rows: matrix products of the gates' gradients with the inputs and
        with the states before the steps. Also adds the inputs' gradients of these rows to `_dx`."""
        if self._dx is not None:
            self._dx[rows].addmm_(by_x, weights.by_input)
        gradients = [by_x.T @ self._data[rows], by_h.T @ before]
        return [*gradients, by_x.sum(0), by_h.sum(0)] if weights.biases else gradients


class _StatesBefore:
    """Gives, for a range of rows, the hidden states with which their time steps began."""

    def __init__(self, steps: TimeSteps, y: torch.Tensor, h0: torch.Tensor, direction: int, hidden: int) -> None:
        self._own = y[:, direction * hidden : (direction + 1) * hidden]
        self._h0, self._batch, self._reverse = h0[direction], steps.batch, direction == 1
        self._before = None if steps.is_even else steps.rows_before(reverse=self._reverse)

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """The states with which the steps of the rows from `begin` to before `end` began. The rows have to be
        those of whole steps."""
        if self._before is not None:
            return self._gathered(self._before[begin:end])
        if self._reverse:
            states = self._own[begin + self._batch : end + self._batch]
            return states if states.shape[0] == end - begin else torch.cat((states, self._h0))
        if begin > 0:
            return self._own[begin - self._batch : end - self._batch]
        return torch.cat((self._h0, self._own[: end - self._batch]))

    def _gathered(self, rows: torch.Tensor) -> torch.Tensor:
        total = self._own.shape[0]
        is_known = (rows < total).unsqueeze(1)
        return torch.where(is_known, self._own[rows.clamp(max=total - 1)], self._h0[(rows - total).clamp(min=0)])
