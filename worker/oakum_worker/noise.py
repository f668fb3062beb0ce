"""Random numbers that follow from (key, sample, call, element) alone, whichever rank computes the sample.

For sample i of the global batch and the c-th drawing call of its forward pass, element j of the sample has the
32 random bits

    x (2 x + 1)  with  x = (a_i A_c) h(j) + (b_i ^ B_c)   modulo 2**32

where (a_i, b_i) is the SplitMix64 hash of (key, i), a_i made odd, (A_c, B_c) was drawn for the call, and h is a
fixed bijection that leaves no order in the element numbers. The affine map makes any two numbers independent over
random keys; x (2 x + 1), the permutation at the heart of RC6 (Rivest, Robshaw, Sidney and Yin, 1998), breaks the
linear relations among more than two, most thoroughly in the high bits, which are the ones used. That is two passes
over the elements, in integer arithmetic, which is the same on every machine.

The call's numbers come from torch's default CPU generator, which has to be seeded from the key alone. It is the
one source that activation checkpointing puts back before it computes a part of the forward pass again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from oakum_worker.errors import TrainingWarning
from oakum_worker.randomness import mix, mix_all, signed

Role = Literal["activation", "like", "sizes", "shared"]
"""What the shape that numbers are drawn for is of, which says how the batch is looked for in it.

- `activation`: something computed from the samples. Without a batch in it: a warning.
- `like`: any tensor. Without a batch in it: numbers that all samples share.
- `sizes`: sizes alone, of which only equality tells. Without a batch in them: as above.
- `shared`: something that certainly has no batch, such as a parameter.
"""

_ALL_SAMPLES, _THESE_SAMPLES = -1, -2
_INT32 = -(1 << 31), 1 << 31
_MULTIPLIERS = 0x7FEB352D, 0x846CA68B - (1 << 32)
_tables: dict[torch.device, torch.Tensor] = {}
_warned: set[str] = set()


class Keys(NamedTuple):
    """The a and b of some samples: int32, shape (samples, 1)."""

    factors: torch.Tensor
    offsets: torch.Tensor


class Noise:
    """The random numbers of one micro-batch at a time."""

    def begin(self, key: int, first: int, count: int, device: torch.device) -> None:
        """Draw for `count` samples from now on, the first of which is number `first` of the global batch."""
        samples = mix_all(key, torch.arange(first, first + count))
        others = torch.tensor([signed(mix(key, _ALL_SAMPLES)), signed(mix(key, _THESE_SAMPLES, first))])
        hashes = torch.cat((samples, others)).unsqueeze(1).to(device, non_blocking=True)
        factors = (hashes.to(torch.int32) | 1).split((count, 1, 1))
        offsets = (hashes >> 32).to(torch.int32).split((count, 1, 1))
        self._of_each, self._of_all, self._of_these = map(Keys, factors, offsets)

    def bits(self, shape: Sequence[int], device: torch.device, role: Role) -> torch.Tensor:
        """The next call's random bits: int32, of that shape."""
        count = self._of_each.factors.shape[0]
        dim = batch_dim(shape, count, role)
        if dim == 1:
            ones = (1,) * (len(shape) - 2)
            factors, offsets = (part.view(1, count, *ones) for part in _keys_of_call(self._of_each, device))
            elements = _elements(math.prod(shape) // count, device).view(shape[0], 1, *shape[2:])
            return _permute(torch.addcmul(offsets, factors, elements))
        keys = self._of_each if dim == 0 else self._of_all
        if dim is None and role == "activation" and shape[:1] != (1,):
            keys = self._of_these
            warn_once(
                f"dropout of a tensor of shape {tuple(shape)}, in which the {count} samples computed at once were "
                "not found: its masks depend on how many samples a node computes at once"
            )
        factors, offsets = _keys_of_call(keys, device)
        elements = _elements(math.prod(shape) // keys.factors.shape[0], device)
        return _permute(torch.addcmul(offsets, factors, elements)).view(tuple(shape))

    def batch_dim(self, shape: Sequence[int], role: Role) -> int | None:
        """Where the samples are in a tensor of that shape."""
        return batch_dim(shape, self._of_each.factors.shape[0], role)


def batch_dim(shape: Sequence[int], count: int, role: Role) -> int | None:
    """The dimension of a shape, 0 or 1, along which `count` samples lie; None where none does.

    In this order: the first, if it is `count`; the second of three or more (the sequence first); the first, if it
    is a multiple of `count` (tokens of a sample one after the other, views or heads); the second of two.
    """
    if role == "shared" or not shape:
        return None
    if shape[0] == count:
        return 0
    if len(shape) > 2 and shape[1] == count:
        return 1
    if role == "sizes":
        return None
    if shape[0] > 0 and shape[0] % count == 0:
        return 0
    return 1 if len(shape) == 2 and shape[1] == count else None


def threshold(probability: float) -> int:
    """What random bits are below with that probability."""
    return min(round(probability * 2**32), 2**32 - 1) - 2**31


def uniform(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Evenly spaced numbers between 0 and 1, neither included: as many as the type resolves, and at most 2**32."""
    digits = 32 if dtype == torch.float64 else round(-math.log2(torch.finfo(dtype).eps))
    wide = dtype if dtype == torch.float64 else torch.float32
    return (bits >> (32 - digits)).to(wide).add_(0.5).mul_(2.0**-digits).add_(0.5).to(dtype)


def normal(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Standard normal numbers; the largest are 5.3 standard deviations from the mean, 6.3 in float64."""
    wide = dtype if dtype == torch.float64 else torch.float32
    return uniform(bits, wide).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2)).to(dtype)


def warn_once(message: str) -> None:
    """Warn of something that the user may want to change, once in the process."""
    if message not in _warned and not torch.compiler.is_compiling():
        _warned.add(message)
        warnings.warn(message, TrainingWarning, stacklevel=2)


def call_seed() -> int:
    """The next call's number for draws that are torch's own."""
    return mix(*_numbers_of_call())


def _keys_of_call(keys: Keys, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """a A and b ^ B for the next call."""
    factor, offset = _numbers_of_call()
    factors, offsets = keys
    if factors.device != device:
        factors, offsets = factors.to(device), offsets.to(device)
    return factors * factor, offsets ^ offset


def _numbers_of_call() -> Any:
    """A, made odd, and B: 32 bits each."""
    if torch.compiler.is_compiling():
        # Scalars: without sizes they are not taken for the samples', should the trace be run with the mode active.
        factor = torch.randint(*_INT32, (), dtype=torch.int32, device="cpu")
        return factor | 1, torch.randint(*_INT32, (), dtype=torch.int32, device="cpu")
    factor, offset = torch.empty(2, dtype=torch.int32, device="cpu").random_(*_INT32).tolist()
    return factor | 1, offset


def _permute(noise: torch.Tensor) -> torch.Tensor:
    return noise.addcmul_(noise, noise, value=2)


def _elements(count: int, device: torch.device) -> torch.Tensor:
    """h(0), ..., h(count - 1); kept, because it takes longer to compute than the noise itself."""
    if torch.compiler.is_compiling():
        return _hash(torch.arange(count, dtype=torch.int32, device=device))
    table = _tables.get(device)
    if table is None or table.numel() < count:
        table = _hash(torch.arange(count, dtype=torch.int32, device=device))
        _tables[device] = table
    return table[:count]


def _hash(x: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits whose every output bit depends on every input bit (the "lowbias32" of C. Wellons)."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MULTIPLIERS[0]
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _MULTIPLIERS[1]
    return x ^ ((x >> 16) & 0xFFFF)
