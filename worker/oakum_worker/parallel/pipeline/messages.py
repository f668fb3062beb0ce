"""Describes the tensors that two workers exchange for a micro-batch at a boundary between stages."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from oakum_worker.chain import Values


@dataclass(frozen=True, slots=True)
class BoundaryTensors:
    """Names the tensors of one micro-batch that cross one boundary between stages in one direction.

    Two micro-batches in one message are two `BoundaryTensors`, one after the other.
    """

    pipe: int
    boundary: int
    """Number of the stage before the boundary."""
    num_samples: int
    is_gradient: bool

    @property
    def place(self) -> tuple[int, int, int]:
        """(pipe, boundary, number of samples), which determines the tensors' shapes."""
        return self.pipe, self.boundary, self.num_samples

    def __str__(self) -> str:
        what = "gradients" if self.is_gradient else "activations"
        return f"{what} of {self.num_samples} samples after stage {self.boundary} (pipe {self.pipe})"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a receiver needs to know to allocate memory for a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def empty(self, device: torch.device) -> torch.Tensor:
        """Uninitialised memory for the tensor."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class ValuesSpec:
    """Describes all tensors that a stage passes to the next."""

    tensors: tuple[TensorHeader, ...]
    is_tuple: bool
    """Whether the values are a tuple, whose elements are the next layer's arguments, or a single tensor."""

    @classmethod
    def of(cls, values: Values) -> ValuesSpec:
        """The description of `values`."""
        tensors = values if isinstance(values, tuple) else (values,)
        return cls(
            tuple(TensorHeader(tuple(t.shape), t.dtype, t.requires_grad) for t in tensors),
            isinstance(values, tuple),
        )

    @property
    def gradients(self) -> tuple[TensorHeader, ...]:
        """Descriptions of the gradients that come back: one for each tensor that requires a gradient."""
        return tuple(tensor for tensor in self.tensors if tensor.requires_grad)

    def assemble(self, tensors: tuple[torch.Tensor, ...]) -> Values:
        """The values that the tensors stand for: the tuple, or the single tensor. Sets `requires_grad` of each
        tensor as described."""
        for tensor, spec in zip(tensors, self.tensors, strict=True):
            tensor.requires_grad_(spec.requires_grad)
        return tensors if self.is_tuple else tensors[0]

    def encode(self) -> bytes:
        """The description as JSON bytes, for a header."""
        tensors = [[t.shape, str(t.dtype).removeprefix("torch."), t.requires_grad] for t in self.tensors]
        return json.dumps([self.is_tuple, tensors]).encode("ascii")

    @classmethod
    def decode(cls, header: bytes) -> ValuesSpec:
        """The description in JSON bytes that `encode` made."""
        is_tuple, tensors = json.loads(header)
        return cls(
            tuple(TensorHeader(tuple(shape), getattr(torch, name), required) for shape, name, required in tensors),
            is_tuple,
        )

    def __str__(self) -> str:
        return ", ".join(f"{t.dtype} {list(t.shape)}" for t in self.tensors) or "nothing"
