"""The memory of an offloaded optimizer: weights and moments of its parameters in flat tensors on the host."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

WEIGHTS = "master"
"""Key of the float32 weights of half-precision parameters."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive elements of one parameter within a storage."""

    parameter: torch.Tensor
    within: slice
    """Which of the parameter's elements, in memory order."""
    in_storage: range
    """Their positions in the storage."""


class FlatStorage:
    """Moments, and for half precision the float32 weights, of all parameters of one type on one device.

    Each is a flat tensor on the host with the parameters one after the other, their elements in memory order
    whatever the strides. Parameters wider than half precision have their weights on the device alone.
    """

    def __init__(self, parameters: list[torch.Tensor], moments: Sequence[str]) -> None:
        self.parameters = parameters
        self.device = parameters[0].device
        *self._starts, self.length = 0, *itertools.accumulate(p.numel() for p in parameters)
        self._offsets = {id(p): offset for p, offset in zip(parameters, self._starts, strict=True)}
        dtype = update_dtype(parameters[0])
        self.weights_like = torch.empty(0, dtype=dtype, device=self.device)
        """An empty tensor with the type and the device in which weights are updated."""
        self._host = {name: self._zeros(dtype) for name in moments}
        if dtype != parameters[0].dtype:
            self._host[WEIGHTS] = self._zeros(dtype)
            for piece in self.pieces(range(self.length)):
                self.on_host(WEIGHTS, piece.in_storage).copy_(_memory(piece.parameter))
        self.gradients: torch.Tensor | None = None
        """All gradients in one tensor on the device, shape (length,); None where autograd allocates each."""

    def _zeros(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(self.length, dtype=dtype, pin_memory=self.device.type == "cuda")

    @property
    def keeps_weights(self) -> bool:
        """Whether float32 weights are on the host."""
        return WEIGHTS in self._host

    def on_host(self, name: str, elements: range) -> torch.Tensor:
        """View of the host's tensor `name` at `elements`, shape (elements,)."""
        return self._host[name][elements.start : elements.stop]

    def kept(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The host's tensors of one parameter by name: views with the parameter's shape and strides."""
        return {name: self._view(flat, parameter) for name, flat in self._host.items()}

    def _view(self, flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(parameter.shape, parameter.stride(), self._offsets[id(parameter)])

    def take_gradients(self, take: bool) -> None:
        """With `take`, allocate one tensor for the gradients of all parameters, else release it. Parameters use it
        only after `clear_gradients` or `gather_gradients`."""
        self.gradients = self.parameters[0].new_zeros(self.length) if take else None

    def clear_gradients(self) -> None:
        """Set each parameter's gradient to zeros in the single tensor."""
        assert self.gradients is not None
        self.gradients.zero_()
        for parameter in self.parameters:
            parameter.grad = self._view(self.gradients, parameter)

    def gather_gradients(self) -> None:
        """Copy gradients that are elsewhere into the single tensor; zeros for parameters without a gradient."""
        assert self.gradients is not None
        for parameter in self.parameters:
            place = self._view(self.gradients, parameter)
            if parameter.grad is None:
                place.zero_()
            elif parameter.grad.data_ptr() != place.data_ptr():
                place.copy_(_to_dense(parameter.grad))
            parameter.grad = place

    def largest_gradient(self) -> torch.Tensor:
        """max |g| over all gradients, as a float64 tensor of shape () on the device; NaN if any gradient holds
        NaN, 0 without gradients."""
        every = [self.gradients] if self.gradients is not None else [p.grad for p in self.parameters]
        norms = [torch.linalg.vector_norm(_to_dense(g), torch.inf) for g in every if g is not None and g.numel()]
        if not norms:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        return torch.stack(norms).double().max()

    def pieces(self, elements: range) -> Iterator[Piece]:
        """The pieces of parameters that lie at the positions `elements` of the storage, in order."""
        first = bisect.bisect_right(self._starts, elements.start) - 1
        for parameter, offset in zip(self.parameters[first:], self._starts[first:], strict=True):
            start, stop = max(offset, elements.start), min(offset + parameter.numel(), elements.stop)
            if start >= stop:
                return
            yield Piece(parameter, slice(start - offset, stop - offset), range(start, stop))

    def spans(self, elements: range, advances: Mapping[int, Any]) -> Iterator[UpdateSpan]:
        """Runs of adjacent pieces with equal `advances`, which one update can handle; parameters not in
        `advances`, which have no gradient, are left out."""
        span: list[Piece] = []
        for piece in self.pieces(elements):
            if id(piece.parameter) not in advances:
                continue
            together = span and span[-1].in_storage.stop == piece.in_storage.start
            if span and not (together and advances[id(span[-1].parameter)] == advances[id(piece.parameter)]):
                yield UpdateSpan(self, span, advances[id(span[0].parameter)])
                span = []
            span.append(piece)
        if span:
            yield UpdateSpan(self, span, advances[id(span[0].parameter)])


@dataclass(frozen=True, slots=True)
class UpdateSpan:
    """Consecutive elements of a storage, of one or more parameters, that are updated together."""

    storage: FlatStorage
    pieces: list[Piece]
    advance: Any
    """What the update depends on, as returned by `Offloaded._advance`."""

    @property
    def elements(self) -> range:
        """The positions of the span's elements in the storage."""
        return range(self.pieces[0].in_storage.start, self.pieces[-1].in_storage.stop)

    def fetch(self, weights: torch.Tensor, moments: Mapping[str, torch.Tensor]) -> None:
        """Copy moments, and weights if the host has them, from the host into device tensors of shape
        (elements,)."""
        for host, place in self._host_pairs(weights, moments):
            place.copy_(host, non_blocking=True)

    def gather(self, weights: torch.Tensor, gradients: torch.Tensor) -> None:
        """Copy gradients, and weights that only the device has, into device tensors of shape (elements,)."""
        whole = self.storage.gradients
        if whole is not None:
            gradients.copy_(whole[self.elements.start : self.elements.stop])
        for piece, at in self._places():
            if whole is None:
                gradients[at].copy_(_gradient(piece.parameter)[piece.within])
            if not self.storage.keeps_weights:
                weights[at].copy_(_memory(piece.parameter)[piece.within])

    def apply(self, weights: torch.Tensor) -> None:
        """Copy updated weights into the parameters."""
        for piece, at in self._places():
            _memory(piece.parameter)[piece.within].copy_(weights[at])

    def store(self, weights: torch.Tensor, moments: Mapping[str, torch.Tensor]) -> None:
        """Copy updated moments, and weights if the host has them, back to the host."""
        for host, place in self._host_pairs(weights, moments):
            host.copy_(place, non_blocking=True)

    def _host_pairs(
        self, weights: torch.Tensor, moments: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        places = {**moments, WEIGHTS: weights} if self.storage.keeps_weights else moments
        for name, place in places.items():
            yield self.storage.on_host(name, self.elements), place

    def _places(self) -> Iterator[tuple[Piece, slice]]:
        first = self.elements.start
        for piece in self.pieces:
            yield piece, slice(piece.in_storage.start - first, piece.in_storage.stop - first)


def flat_storages(parameters: Sequence[torch.Tensor], moments: Sequence[str]) -> list[FlatStorage]:
    """Storages for all parameters that require gradients. Raises `ValueError` for one that cannot be offloaded."""
    return [FlatStorage(of_kind, moments) for of_kind in kinds(parameters)]


def kinds(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The parameters that require gradients, grouped by device and type.

    Raises `ValueError` for one that is complex, sharded or not dense in memory.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for parameter in parameters:
        if not parameter.requires_grad or not parameter.numel():
            continue
        if parameter.is_complex() or hasattr(parameter, "to_local") or not _is_dense(parameter):
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} cannot be offloaded: it is complex, sharded, or "
                "does not fill its memory; use torch's own optimizer"
            )
        groups.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(groups.values())


def update_dtype(parameter: torch.Tensor) -> torch.dtype:
    """The type in which the parameter's weights and moments are updated: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _is_dense(parameter: torch.Tensor) -> bool:
    """Whether the parameter's elements fill its memory without gaps, in any order."""
    return torch.empty_like(parameter, device="meta").stride() == parameter.stride()


def _to_dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """View of a dense tensor's elements in memory order, shape (elements,)."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient's elements in the memory order of the parameter, shape (elements,)."""
    assert parameter.grad is not None
    gradient = _to_dense(parameter.grad)
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
    return _memory(gradient)
