"""Gradients in flat buckets; one collective per bucket sums it over the ranks.

Gradients of half-precision parameters are summed in float32 over micro-batches and over ranks. The sum is rounded
once, when it is complete and goes to `p.grad` in the parameter's own type, so the error does not grow with the
number of micro-batches or ranks. That costs 4 bytes of memory for each such parameter and doubles the bytes sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from oakum_worker.torch_internals import multiply_in_place


class Reduction(Protocol):
    """A running or finished collective that sums tensors over the ranks."""

    def wait(self) -> Any:
        """Wait until the sum is complete. Raises `RuntimeError` when a rank is gone."""
        ...


@dataclass(eq=False)
class Bucket:
    """The gradients of consecutive parameters in one flat tensor. In the last bucket the `tail_length` numbers
    that `lay_out` appends follow the gradients."""

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    gradients: list[torch.Tensor]
    """Views of `flat`, shaped like the parameters."""
    waiting: set[int] = field(default_factory=set)
    """Indexes of the parameters whose gradients are not complete on this rank."""
    begun: set[int] = field(default_factory=set)
    """Indexes of the parameters for which `flat` already holds gradients of earlier micro-batches."""
    spent: list[torch.Tensor] = field(default_factory=list)
    """Gradient tensors that backward made in this step, kept until its end."""
    work: Reduction | None = None

    def open(self) -> None:
        """Begin a new step: forget which gradients the bucket holds, and let go of the previous step's tensors."""
        self.work = None
        self.waiting = set(range(len(self.parameters)))
        self.begun.clear()
        self.spent.clear()

    def widens(self, number: int) -> bool:
        """Whether gradients of the bucket's parameter number `number` are summed in a wider type than the
        parameter's own."""
        return self.parameters[number].dtype != self.flat.dtype

    def gather(self, number: int) -> None:
        """Move the gradient that backward computed for parameter `number` into the bucket, adding to earlier
        ones, and set its `p.grad` to None. Does nothing without such a gradient."""
        parameter, place = self.parameters[number], self.gradients[number]
        gradient = parameter.grad
        if gradient is None or gradient is place:
            return
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if number in self.begun:
            place.add_(dense)
        else:
            place.copy_(dense)
            self.begun.add(number)
        if gradient.device.type == "cpu" and not self.widens(number):
            # Freed one by one within backward, this memory would go back to the system, which takes longer to
            # give it out again, page by page, than the copy took.
            self.spent.append(gradient)
        parameter.grad = None

    def complete(self, number: int) -> None:
        """Mark the gradient of parameter `number` as complete on this rank; it is zeros if the loss did not use
        it."""
        self.gather(number)
        if number not in self.begun:
            self.gradients[number].zero_()
        if not self.widens(number):
            self.parameters[number].grad = self.gradients[number]
        self.waiting.discard(number)

    def hand_out(self) -> None:
        """Set `p.grad` of the half-precision parameters to their sums in the bucket, rounded to the parameter's
        type. Other parameters' `p.grad` are views of the bucket already."""
        for number, parameter in enumerate(self.parameters):
            if self.widens(number):
                parameter.grad = self.gradients[number].to(parameter.dtype)


def summed_in(parameter: torch.Tensor) -> torch.dtype:
    """The type in which the parameter's gradients are summed: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def weak_hook(method: Callable[..., None]) -> Callable[..., None]:
    """Make a hook for a parameter's gradients that calls `method` with the hook's arguments, and does nothing once
    the method's object has been freed.

    Autograd keeps hooks where garbage collection does not see them. A hook that referred to the object itself
    would keep it, with the parameters, buckets and process group that it refers to, until the process ends.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (hook := reference()) is not None:
            hook(*arguments)

    return call


def multiply_gradients(parameters: Iterable[nn.Parameter], buckets: Sequence[Bucket], factor: float) -> None:
    """Multiply the gradient sums by `factor`, before `hand_out`: in the buckets, or in `p.grad` without buckets.

    A factor of 1 changes no bit.
    """
    if factor == 1:
        return
    for bucket in buckets:
        if bucket.gradients:
            multiply_in_place(bucket.gradients, factor)
    if buckets:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def lay_out(
    parameters: Sequence[nn.Parameter],
    first_bytes: int,
    other_bytes: int,
    tail_length: int,
    multiple_of: int = 1,
) -> tuple[list[Bucket], torch.Tensor]:
    """(buckets for the parameters, tail); the order of the parameters is kept as far as their types allow.

    The tail is a view of `tail_length` numbers at the end of the last bucket, which is real and at least float32
    for that purpose. Zeros pad every bucket to a multiple of `multiple_of` numbers.
    """
    runs = _split(parameters, first_bytes, other_bytes)
    real = [index for index, run in enumerate(runs) if not run[0].is_complex()]
    runs.append(runs.pop(real[-1]) if real else [])
    device = parameters[0].device
    buckets = [_bucket(run, device, tail_length if run is runs[-1] else 0, multiple_of) for run in runs]
    return buckets, buckets[-1].flat[-tail_length:]


def _split(parameters: Sequence[nn.Parameter], first_bytes: int, other_bytes: int) -> list[list[nn.Parameter]]:
    """Cut the parameters into runs of one type and device that fill one bucket each, in the order in which their
    gradients become complete."""
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
        # A gradient with the memory layout of its parameter needs no transposition when it is added or applied.
        strides = torch.empty_like(parameter, device="meta").stride()
        gradients.append(flat.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return Bucket(parameters, flat, gradients)
