"""`LSTM` and `GRU`: `torch.nn`'s layers by the same names and parameters, computed by fused loops where they can.

They take and give what torch's layers do, with the same state dicts: also bidirectional, in several layers, with
`batch_first`, packed sequences and `proj_size`. Fused loops compute float32 and float64 on the CPU; anything else
(another device or type, autocast, projections, a machine without a C++ compiler) goes through torch's own
function, one layer at a time. `runs` says which. torch.compile leaves the layers as they are and compiles the rest
of a model.

Dropout between layers is drawn for each sample of the batch (`oakum_worker.randomness`), in both cases, so a
trainer with it computes the same losses on any number of nodes.

Where both can compute, the one runs that is faster at the size: they are measured at the first call with a size
(`verdicts`).

Second derivatives repeat the forward pass by torch. `OAKUM_FUSED_LOOPS=false` in the environment switches fused
loops off.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from oakum_worker.errors import NoLoopsError, TrainingWarning
from oakum_worker.recurrent.choices import choose
from oakum_worker.recurrent.design_space import Cell, Shape
from oakum_worker.recurrent.kernels import Kernels, kernels
from oakum_worker.recurrent.passes import LayerPlan, TimeSteps, run_by_torch, run_layer
from oakum_worker.recurrent.verdicts import Gradients, Verdict, faster

_TYPES = (torch.float32, torch.float64)
_KINDS = (torch.Tensor, nn.Parameter)
_FEWEST_STEPS = 4
"""Steps that have to share the copying of weights for fused loops to be worth it where weights are trained."""


@dataclass(frozen=True)
class _Sequences:
    """A batch of sequences as one tensor of rows: all rows of the first time step, then those of the next, longest
    sequences first."""

    rows: torch.Tensor  # (rows, features)
    steps: TimeSteps
    order: (
        torch.Tensor | None
    )  # which of the batch's samples each sequence is; None: they are in the batch's order

    def with_rows(self, rows: torch.Tensor) -> _Sequences:
        return _Sequences(rows, self.steps, self.order)

    def dropped(self, p: float) -> _Sequences:
        """These sequences after dropout with probability `p`, drawn for each sample of the batch, whose elements
        are numbered by step and feature."""
        batch, number, features = self.steps.batch, self.steps.number, self.rows.shape[1]
        if self.steps.is_even and self.order is None:
            by_sample = self.rows.view(number, batch, features).transpose(0, 1)
            return self.with_rows(F.dropout(by_sample, p, training=True).transpose(0, 1).reshape(-1, features))
        mask = F.dropout(self.rows.new_ones(batch, number, features), p, training=True)
        if self.order is not None:
            mask = mask[self.order]
        places = torch.arange(batch) < self.steps.sizes.unsqueeze(1)  # (steps, batch)
        return self.with_rows(self.rows * mask.transpose(0, 1)[places.to(mask.device)])


@dataclass
class _Met:
    """What a layer has met so far. Not in the layer's attributes: a pass would change the state of the model."""

    last: Verdict | None = None
    """The verdict on the last size."""
    ran_loops: bool = False
    """Whether the loops computed anything in the last pass."""
    by_torch: dict[tuple[Any, ...], Verdict | None] = field(default_factory=dict)
    """Calls that are torch's as a whole: its forward pass in one piece costs a small layer less than ours."""


_MOST_MET = 4096
_met: WeakKeyDictionary[nn.Module, _Met] = WeakKeyDictionary()


class _Fused(nn.RNNBase):
    """Base class of both layers: computes by fused loops where they can run, else by torch's function."""

    _cell: Cell

    @property
    def runs(self) -> str:
        """Text that tells what computes the layer on this machine, "fused loops" or "torch", with the reason in
        brackets. Which of them is faster is known once the layer has computed something, and told of the last size
        that it met. Compiles the loops if they are missing."""
        reason = self._unfit(*self.all_weights[0])
        if reason is not None:
            return f"torch ({reason})"
        met = _met.get(self)
        if met is None or (verdict := met.last) is None:
            return "fused loops (or torch where it is faster, which the first call finds out)"
        return f"{'fused loops' if verdict.is_fused else 'torch'} ({verdict})"

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiler cannot trace the loops
    def forward(self, input: Any, hx: Any = None) -> Any:
        """The outputs and the last states, as torch's layer of the same name returns them for the same arguments.
        Raises `ValueError` or `RuntimeError` for arguments of wrong shapes."""
        met, call = _met.get(self), self._call(input)
        if met is not None and call in met.by_torch:
            met.last = met.by_torch[call]
            return super().forward(input, hx)  # torch's
        met = _met.setdefault(self, _Met())
        met.ran_loops = False
        outputs = (
            self._forward_packed(input, hx) if isinstance(input, PackedSequence) else self._forward(input, hx)
        )
        is_torchs = not (met.ran_loops or self._drops or torch.is_autocast_enabled("cpu"))
        if is_torchs and len(met.by_torch) < _MOST_MET:
            met.by_torch[call] = met.last
        return outputs

    def _call(self, input: Any) -> tuple[Any, ...]:
        """All of a call of `forward` that decides what computes it."""
        size = None
        if isinstance(input, PackedSequence):
            size, input = (len(input.batch_sizes), int(input.batch_sizes[0])), input.data
        weights: Any = self._flat_weights[0]
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_num_threads()
        inputs = input.shape, input.dtype, input.device, input.requires_grad, weights.requires_grad
        return size, inputs, modes, self.training, self.dropout

    @property
    def _drops(self) -> bool:
        return self.training and self.dropout > 0

    def _forward(self, input: torch.Tensor, hx: Any) -> Any:
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__} takes an input of 2 or 3 dimensions, got {input.dim()}")
        is_batched = input.dim() == 3
        states = self._states(hx)
        if any(state.dim() != input.dim() for state in states):
            raise RuntimeError(
                f"{type(self).__name__} takes states of as many dimensions as the input's {input.dim()}, got "
                f"{[state.dim() for state in states]}"
            )
        if not is_batched:
            input = input.unsqueeze(0 if self.batch_first else 1)
            states = [state.unsqueeze(1) for state in states]
        states = states or self._zeros(input, input.shape[0 if self.batch_first else 1])
        self.check_forward_args(input, self._together(states), None)
        if self.batch_first:
            input = input.transpose(0, 1)
        number, batch, features = input.shape
        sequences = _Sequences(input.reshape(-1, features), _even_steps(number, batch), None)
        sequences, last = self._layers(sequences, states)
        output = sequences.rows.view(number, batch, -1)
        if not is_batched:
            return output.squeeze(1), self._together([state.squeeze(1) for state in last])
        return output.transpose(0, 1) if self.batch_first else output, self._together(last)

    def _forward_packed(self, input: PackedSequence, hx: Any) -> Any:
        states = self._states(hx) or self._zeros(input.data, int(input.batch_sizes[0]))
        if input.sorted_indices is not None and hx is not None:
            states = [state.index_select(1, input.sorted_indices) for state in states]
        self.check_forward_args(input.data, self._together(states), input.batch_sizes)
        sequences = _Sequences(input.data, TimeSteps(input.batch_sizes), input.sorted_indices)
        sequences, last = self._layers(sequences, states)
        if input.unsorted_indices is not None:
            last = [state.index_select(1, input.unsorted_indices) for state in last]
        packed = PackedSequence(sequences.rows, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return packed, self._together(last)

    def _layers(self, sequences: _Sequences, states: list[torch.Tensor]) -> tuple[_Sequences, list[torch.Tensor]]:
        """The last layer's outputs and all layers' last states, each (layers * directions, batch, hidden)."""
        directions = 2 if self.bidirectional else 1
        weights = self.all_weights
        last: list[list[torch.Tensor]] = []
        for layer in range(self.num_layers):
            if layer > 0 and self._drops:
                sequences = sequences.dropped(self.dropout)
            own = slice(layer * directions, (layer + 1) * directions)
            rows, *after = self._layer(
                sequences, [state[own] for state in states], [one for each in weights[own] for one in each]
            )
            sequences = sequences.with_rows(rows)
            last.append(after)
        if self.num_layers == 1:
            return sequences, last[0]
        return sequences, [torch.cat(parts) for parts in zip(*last, strict=True)]

    def _layer(
        self, sequences: _Sequences, states: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        cells = states[1] if len(states) > 1 else None
        arguments = (sequences.rows, states[0], cells, weights)
        tensors = [sequences.rows, *states, *weights]
        plan = self._plan(sequences, _gradients(tensors)) if self._unfit(*tensors) is None else None
        if plan is None:
            directions = 2 if self.bidirectional else 1
            return list(
                run_by_torch(
                    self._cell, sequences.steps, *arguments, directions=directions, training=self.training
                )
            )
        _met[self].ran_loops = True
        y, h_n, c_n = run_layer(plan, *arguments)
        return [y, h_n] if cells is None else [y, h_n, c_n]

    def _plan(self, sequences: _Sequences, gradients: Gradients) -> LayerPlan | None:
        """How the loops compute a layer for these sequences; None where torch is faster."""
        steps, rows = sequences.steps, sequences.rows
        if gradients != "none" and steps.number < _FEWEST_STEPS:
            return None
        loaded = kernels()
        assert isinstance(loaded, Kernels)  # `_unfit` has looked
        shape = Shape(self._cell, self.hidden_size, rows.shape[1], steps.number, steps.batch, rows.dtype.itemsize)
        threads = torch.get_num_threads()
        verdict = faster(loaded, shape, threads, gradients)
        _met[self].last = verdict
        if not verdict.is_fused:
            return None
        choice = choose(shape, loaded.vector_bytes, threads)
        return LayerPlan(loaded, self._cell, steps, choice, 2 if self.bidirectional else 1)

    def _unfit(self, *tensors: torch.Tensor) -> str | None:
        """Text that says why torch has to compute with these tensors; None where the fused loops can."""
        if self.proj_size > 0:
            return "it has projections"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on"
        dtype = tensors[0].dtype
        if dtype not in _TYPES:
            return f"of {dtype}"
        for tensor in tensors:
            if not tensor.is_cpu or tensor.dtype is not dtype:
                return f"of {tensor.dtype} on {tensor.device}"
            if type(tensor) not in _KINDS or tensor.layout is not torch.strided:
                return f"of type {type(tensor).__name__}"
        if tensors[0].numel() == 0:
            return "of no elements"
        loaded = kernels()
        if isinstance(loaded, NoLoopsError):
            _warn_of_torch(str(loaded))
            return str(loaded)
        return None

    def _states(self, hx: Any) -> list[torch.Tensor]:
        return [] if hx is None else [hx]

    def _together(self, states: Sequence[torch.Tensor]) -> Any:
        return states[0]

    def _zeros(self, input: torch.Tensor, batch: int) -> list[torch.Tensor]:
        number = self.num_layers * (2 if self.bidirectional else 1)
        return [input.new_zeros(number, batch, self.proj_size or self.hidden_size)]


class LSTM(_Fused, nn.LSTM):
    """`torch.nn.LSTM`, computed by fused loops where they can run, else by torch."""

    _cell: Cell = "lstm"

    def _states(self, hx: Any) -> list[torch.Tensor]:
        return [] if hx is None else list(hx)

    def _together(self, states: Sequence[torch.Tensor]) -> Any:
        return tuple(states)

    def _zeros(self, input: torch.Tensor, batch: int) -> list[torch.Tensor]:
        number = self.num_layers * (2 if self.bidirectional else 1)
        return [*super()._zeros(input, batch), input.new_zeros(number, batch, self.hidden_size)]


class GRU(_Fused, nn.GRU):
    """`torch.nn.GRU`, computed by fused loops where they can run, else by torch."""

    _cell: Cell = "gru"


def _gradients(tensors: Sequence[torch.Tensor]) -> Gradients:
    """What of a layer is differentiated, given its inputs, states and parameters."""
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return "none"
    return "inputs" if tensors[0].requires_grad else "weights"


@functools.lru_cache(maxsize=64)
def _even_steps(number: int, batch: int) -> TimeSteps:
    return TimeSteps(torch.full((number,), batch, dtype=torch.int64))


@functools.cache
def _warn_of_torch(reason: str) -> None:
    warnings.warn(f"recurrent layers are computed by torch's own loops: {reason}", TrainingWarning, stacklevel=2)
