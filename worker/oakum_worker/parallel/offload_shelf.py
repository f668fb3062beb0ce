"""Where an offloaded optimizer keeps what belongs to its parameters, one after the other in flat tensors."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

WEIGHTS = "master"
"""Name of the weights in float32 of parameters in half precision."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive elements of a parameter within a shelf."""

    parameter: torch.Tensor
    within: slice
    """Of the parameter's elements, in the order in which they lie in memory."""
    on_shelf: range


class Shelf:
    """Parameters of one type on one device: moments, and weights in float32, in flat tensors on the host.

    Elements are in the order in which they lie in memory, whatever the parameters' strides. For parameters of a
    wider type than half precision the device's weights are the only ones.
    """

    def __init__(self, parameters: list[torch.Tensor], moments: Sequence[str]) -> None:
        self.parameters = parameters
        self.device = parameters[0].device
        *self._starts, self.length = 0, *itertools.accumulate(p.numel() for p in parameters)
        self._offsets = {id(p): offset for p, offset in zip(parameters, self._starts, strict=True)}
        dtype = updated_in(parameters[0])
        self.weights_like = torch.empty(0, dtype=dtype, device=self.device)
        """Of the type and on the device that weights are updated in."""
        self._host = {name: self._zeros(dtype) for name in moments}
        if dtype != parameters[0].dtype:
            self._host[WEIGHTS] = self._zeros(dtype)
            for piece in self.pieces(range(self.length)):
                self.on_host(WEIGHTS, piece.on_shelf).copy_(_memory(piece.parameter))
        self.gradients: torch.Tensor | None = None
        """All gradients, shape (length,), on the device; None where they are wherever autograd puts them."""

    def _zeros(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(self.length, dtype=dtype, pin_memory=self.device.type == "cuda")

    @property
    def keeps_weights(self) -> bool:
        """Whether weights are on the host, too."""
        return WEIGHTS in self._host

    def on_host(self, name: str, elements: range) -> torch.Tensor:
        """A part of what the host has, shape (elements,)."""
        return self._host[name][elements.start : elements.stop]

    def kept(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the host has for a parameter, shaped and laid out like it."""
        return {name: self._shaped(flat, parameter) for name, flat in self._host.items()}

    def _shaped(self, flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(parameter.shape, parameter.stride(), self._offsets[id(parameter)])

    def take_gradients(self, take: bool) -> None:
        """Have gradients in one tensor from the next `clear_gradients` or `gather_gradients` on, or no more."""
        self.gradients = self.parameters[0].new_zeros(self.length) if take else None

    def clear_gradients(self) -> None:
        """Zeros for each parameter, in their places in the one tensor."""
        assert self.gradients is not None
        self.gradients.zero_()
        for parameter in self.parameters:
            parameter.grad = self._shaped(self.gradients, parameter)

    def gather_gradients(self) -> None:
        """Bring gradients that are elsewhere to their places in the one tensor; zeros where there is none."""
        assert self.gradients is not None
        for parameter in self.parameters:
            place = self._shaped(self.gradients, parameter)
            if parameter.grad is None:
                place.zero_()
            elif parameter.grad.data_ptr() != place.data_ptr():
                place.copy_(_dense(parameter.grad))
            parameter.grad = place

    def largest_gradient(self) -> torch.Tensor:
        """max |g|, shape (), float64 on the device; NaN where one is."""
        found = [self.gradients] if self.gradients is not None else [p.grad for p in self.parameters]
        norms = [torch.linalg.vector_norm(_dense(g), torch.inf) for g in found if g is not None and g.numel()]
        if not norms:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        return torch.stack(norms).double().max()

    def pieces(self, elements: range) -> Iterator[Piece]:
        """The parts of parameters that lie on these elements of the shelf."""
        first = bisect.bisect_right(self._starts, elements.start) - 1
        for parameter, offset in zip(self.parameters[first:], self._starts[first:], strict=True):
            start, stop = max(offset, elements.start), min(offset + parameter.numel(), elements.stop)
            if start >= stop:
                return
            yield Piece(parameter, slice(start - offset, stop - offset), range(start, stop))

    def runs(self, elements: range, advances: Mapping[int, Any]) -> Iterator[Run]:
        """Consecutive pieces that are updated alike; without those that have no gradient."""
        found = (piece for piece in self.pieces(elements) if id(piece.parameter) in advances)
        run: list[Piece] = []
        for piece in found:
            together = run and run[-1].on_shelf.stop == piece.on_shelf.start
            if run and not (together and advances[id(run[-1].parameter)] == advances[id(piece.parameter)]):
                yield Run(self, run, advances[id(run[0].parameter)])
                run = []
            run.append(piece)
        if run:
            yield Run(self, run, advances[id(run[0].parameter)])


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements of a shelf, of one parameter or more, that are updated in one go."""

    shelf: Shelf
    pieces: list[Piece]
    advance: Any
    """What the rule has to know about the parameters."""

    @property
    def elements(self) -> range:
        """On the shelf."""
        return range(self.pieces[0].on_shelf.start, self.pieces[-1].on_shelf.stop)

    def fetch(self, weights: torch.Tensor, moments: Mapping[str, torch.Tensor]) -> None:
        """Bring what the host has to the device, into tensors of shape (elements,)."""
        for host, place in self._hosted(weights, moments):
            place.copy_(host, non_blocking=True)

    def gather(self, weights: torch.Tensor, gradients: torch.Tensor) -> None:
        """Add what is on the device already."""
        whole = self.shelf.gradients
        if whole is not None:
            gradients.copy_(whole[self.elements.start : self.elements.stop])
        for piece, at in self._placed():
            if whole is None:
                gradients[at].copy_(_gradient(piece.parameter)[piece.within])
            if not self.shelf.keeps_weights:
                weights[at].copy_(_memory(piece.parameter)[piece.within])

    def apply(self, weights: torch.Tensor) -> None:
        """Give the parameters their new values."""
        for piece, at in self._placed():
            _memory(piece.parameter)[piece.within].copy_(weights[at])

    def store(self, weights: torch.Tensor, moments: Mapping[str, torch.Tensor]) -> None:
        """Bring what has changed back to the host."""
        for host, place in self._hosted(weights, moments):
            host.copy_(place, non_blocking=True)

    def _hosted(
        self, weights: torch.Tensor, moments: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        places = {**moments, WEIGHTS: weights} if self.shelf.keeps_weights else moments
        for name, place in places.items():
            yield self.shelf.on_host(name, self.elements), place

    def _placed(self) -> Iterator[tuple[Piece, slice]]:
        first = self.elements.start
        for piece in self.pieces:
            yield piece, slice(piece.on_shelf.start - first, piece.on_shelf.stop - first)


def shelves(parameters: Sequence[torch.Tensor], moments: Sequence[str]) -> list[Shelf]:
    """Shelves for the parameters that require gradients. Raises `ValueError` for one that cannot be on any."""
    return [Shelf(of_kind, moments) for of_kind in kinds(parameters)]


def kinds(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The same parameters, those of each shelf together. Raises `ValueError` as `shelves` does."""
    found: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for parameter in parameters:
        if not parameter.requires_grad or not parameter.numel():
            continue
        if parameter.is_complex() or hasattr(parameter, "to_local") or not _is_dense(parameter):
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} cannot be offloaded: it is complex, sharded, or "
                "does not fill its memory; use torch's own optimizer"
            )
        found.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(found.values())


def updated_in(parameter: torch.Tensor) -> torch.dtype:
    """The type of its weights and moments while they are updated: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _is_dense(parameter: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    return torch.empty_like(parameter, device="meta").stride() == parameter.stride()


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements as they lie in memory, shape (elements,); a view."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient's elements in the order in which those of the parameter lie in memory."""
    assert parameter.grad is not None
    gradient = _dense(parameter.grad)
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
    return _memory(gradient)
