"""What is said between two workers: the tensors of a micro-batch at a boundary between stages."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from oakum_worker.chain import Values


@dataclass(frozen=True, slots=True)
class Part:
    """What one micro-batch brings over one boundary between two stages, in one direction.

    A message of two micro-batches is two of them, one behind the other.
    """

    pipe: int
    boundary: int
    """The number of the stage before it."""
    num_samples: int
    is_gradient: bool

    @property
    def place(self) -> tuple[int, int, int]:
        """What shapes depend on."""
        return self.pipe, self.boundary, self.num_samples

    def __str__(self) -> str:
        what = "gradients" if self.is_gradient else "activations"
        return f"{what} of {self.num_samples} samples after stage {self.boundary} (pipe {self.pipe})"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a receiver must know of a tensor before it comes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def empty(self, device: torch.device) -> torch.Tensor:
        """Memory for it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class ValuesSpec:
    """The same of all that a stage hands to the next."""

    tensors: tuple[TensorSpec, ...]
    is_tuple: bool
    """Whether a layer is called with several arguments, or with one that may stand alone in its tuple."""

    @classmethod
    def of(cls, values: Values) -> ValuesSpec:
        """What these values are."""
        tensors = values if isinstance(values, tuple) else (values,)
        return cls(
            tuple(TensorSpec(tuple(t.shape), t.dtype, t.requires_grad) for t in tensors),
            isinstance(values, tuple),
        )

    @property
    def gradients(self) -> tuple[TensorSpec, ...]:
        """What comes back in the other direction."""
        return tuple(tensor for tensor in self.tensors if tensor.requires_grad)

    def assemble(self, tensors: tuple[torch.Tensor, ...]) -> Values:
        """The values, of tensors that have been filled."""
        for tensor, spec in zip(tensors, self.tensors, strict=True):
            tensor.requires_grad_(spec.requires_grad)
        return tensors if self.is_tuple else tensors[0]

    def encode(self) -> bytes:
        """What the sender's header says."""
        tensors = [[t.shape, str(t.dtype).removeprefix("torch."), t.requires_grad] for t in self.tensors]
        return json.dumps([self.is_tuple, tensors]).encode("ascii")

    @classmethod
    def decode(cls, header: bytes) -> ValuesSpec:
        """What the receiver reads there."""
        is_tuple, tensors = json.loads(header)
        return cls(
            tuple(TensorSpec(tuple(shape), getattr(torch, name), required) for shape, name, required in tensors),
            is_tuple,
        )

    def __str__(self) -> str:
        return ", ".join(f"{t.dtype} {list(t.shape)}" for t in self.tensors) or "nothing"
