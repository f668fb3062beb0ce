"""Gradients laid out in flat buckets, which one collective each sums over the ranks.

Gradients of half-precision parameters are gathered in float32: each micro-batch's, and each rank's, is added
without rounding the sum to 8 or 11 bits in between, so what is lost does not grow with the number of either. That
costs 4 bytes for each such parameter, and twice the bytes on the wire. `p.grad` has the parameter's own type
again, rounded once, when the sum is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn


class Reduction(Protocol):
    """A sum over the ranks that is under way."""

    def wait(self) -> Any:
        """Until it is there. Raises `RuntimeError` when a rank is gone."""
        ...


@dataclass(eq=False)
class Bucket:
    """Consecutive gradients in one flat tensor, followed in the last bucket by the tail."""

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    gradients: list[torch.Tensor]
    """Views of `flat`, shaped like the parameters."""
    waiting: set[int] = field(default_factory=set)
    """Numbers of the parameters whose gradients are not there yet."""
    begun: set[int] = field(default_factory=set)
    """Numbers of those of which earlier micro-batches' gradients are already in `flat`."""
    spent: list[torch.Tensor] = field(default_factory=list)
    """The step's gradients as backward made them."""
    work: Reduction | None = None

    def open(self) -> None:
        """Expect a new step's gradients."""
        self.work = None
        self.waiting = set(range(len(self.parameters)))
        self.begun.clear()
        self.spent.clear()

    def widens(self, number: int) -> bool:
        """Whether the parameter's gradient is summed in a wider type than it has."""
        return self.parameters[number].dtype != self.flat.dtype

    def gather(self, number: int) -> None:
        """Move what backward has made of a parameter's gradient into the bucket."""
        parameter, place = self.parameters[number], self.gradients[number]
        made = parameter.grad
        if made is None or made is place:
            return
        dense = made.to_dense() if made.is_sparse else made
        if number in self.begun:
            place.add_(dense)
        else:
            place.copy_(dense)
            self.begun.add(number)
        if made.device.type == "cpu" and not self.widens(number):
            # Freed one by one within backward, this memory would go back to the system, which takes longer to
            # give it out again, page by page, than the copy took.
            self.spent.append(made)
        parameter.grad = None

    def complete(self, number: int) -> None:
        """A parameter's gradient is whole on this rank; one that took no part in the loss has zeros."""
        self.gather(number)
        if number not in self.begun:
            self.gradients[number].zero_()
        if not self.widens(number):
            self.parameters[number].grad = self.gradients[number]
        self.waiting.discard(number)

    def hand_out(self) -> None:
        """Give half-precision parameters their gradients, once the bucket holds the sums."""
        for number, parameter in enumerate(self.parameters):
            if self.widens(number):
                parameter.grad = self.gradients[number].to(parameter.dtype)


def summed_in(parameter: torch.Tensor) -> torch.dtype:
    """The type that a parameter's gradients are summed in: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def lay_out(
    parameters: Sequence[nn.Parameter],
    first_bytes: int,
    other_bytes: int,
    tail_length: int,
    multiple_of: int = 1,
) -> tuple[list[Bucket], torch.Tensor]:
    """Buckets for the parameters, in about the given order, and the tail: `tail_length` numbers of the last one.

    The tail is in a bucket of real numbers, of float32 or more, whatever the parameters are. Every bucket is
    filled up with zeros to a multiple of so many numbers.
    """
    runs = _split(parameters, first_bytes, other_bytes)
    real = [index for index, run in enumerate(runs) if not run[0].is_complex()]
    runs.append(runs.pop(real[-1]) if real else [])
    device = parameters[0].device
    buckets = [_bucket(run, device, tail_length if run is runs[-1] else 0, multiple_of) for run in runs]
    return buckets, buckets[-1].flat[-tail_length:]


def _split(parameters: Sequence[nn.Parameter], first_bytes: int, other_bytes: int) -> list[list[nn.Parameter]]:
    """Runs of parameters of one type and device that fill a bucket each, in the order of their completion."""
    runs: list[list[nn.Parameter]] = []
    open_runs: dict[tuple[torch.device, torch.dtype], tuple[list[nn.Parameter], int]] = {}
    for parameter in parameters:
        kind = parameter.device, summed_in(parameter)
        run, size = open_runs.pop(kind, ([], 0))
        run.append(parameter)
        size += parameter.numel() * kind[1].itemsize
        if size >= (other_bytes if runs else first_bytes):
            runs.append(run)
        else:
            open_runs[kind] = run, size
    return runs + [run for run, _ in open_runs.values()]


def _bucket(parameters: list[nn.Parameter], device: torch.device, tail_length: int, multiple_of: int) -> Bucket:
    dtype = summed_in(parameters[0]) if parameters else torch.float32
    device = parameters[0].device if parameters else device
    length = sum(p.numel() for p in parameters)
    padding = -(length + tail_length) % multiple_of
    flat = torch.empty(length + padding + tail_length, dtype=dtype, device=device)
    flat[length : length + padding].zero_()
    gradients, offset = [], 0
    for parameter in parameters:
        # A gradient with its parameter's memory layout is accumulated and applied without a transposition.
        strides = torch.empty_like(parameter, device="meta").stride()
        gradients.append(flat.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return Bucket(parameters, flat, gradients)
