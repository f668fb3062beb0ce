"""Random numbers that follow from (key, sample, call, element) alone, whichever rank computes the sample.

For sample i of the global batch and the c-th drawing call of its forward pass, element j of the sample has the
32 random bits

    x (2 x + 1)  with  x = (a_i A_c) h(j) + (b_i ^ B_c)   modulo 2**32

where (a_i, b_i) is the SplitMix64 hash of (key, i), a_i made odd, (A_c, B_c) was drawn for the call, and h is a
fixed bijection that leaves no order in the element numbers. An element's number j follows from its place in the
sample alone, and not from the sizes: j = sum_d c_d S_d with its coordinates c_d and fixed strides S_d. So a sample
draws the same wherever its padding ends, as long as it begins at the same place. The affine map makes any two
numbers independent over random keys; x (2 x + 1), the permutation at the heart of RC6 (Rivest, Robshaw, Sidney and
Yin, 1998), breaks the linear relations among more than two, most thoroughly in the high bits, which are the ones
used. That is two passes over the elements, in integer arithmetic, which is the same on every machine.

The call's numbers come from torch's default CPU generator, which has to be seeded from the key alone. It is the
one source that activation checkpointing puts back before it computes a part of the forward pass again.
"""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from oakum_worker.errors import TrainingWarning
from oakum_worker.randomness.batch_dims import BatchDims, Role, batch_dim
from oakum_worker.randomness.counters import mix, mix_all, signed

_LOW = 0 if sys.byteorder == "little" else 1
_ALL_SAMPLES, _THESE_SAMPLES = -1, -2
_INT32 = -(1 << 31), 1 << 31
_MULTIPLIERS = 0x7FEB352D, 0x846CA68B - (1 << 32)
_STRIDES = 1, 0x9E3779B1, 0x7C7F1B35, 0x5D8C2E4F, 0x3B9A73C5, 0x1F83D9AB
"""The strides S of an element's number, from the last dimension on. Large and odd, so that no two elements of a
sample of usual sizes have one number modulo 2**32."""
_LARGEST_SPARE = 4
"""How many times as large as what is asked for a kept table may become."""
_tables: dict[tuple[torch.device, int], torch.Tensor] = {}
_warned: set[str] = set()


class KeyedBits:
    """Source of random bits for the samples of one micro-batch at a time. `begin` has to be called before
    `bits`."""

    def __init__(self, dims: BatchDims | None = None) -> None:
        """`dims` remembers where the samples lie; without it, sizes alone decide."""
        self._dims = dims

    def begin(self, key: int, first: int, count: int, device: torch.device) -> None:
        """Begin a micro-batch of `count` samples that starts at position `first` of the global batch."""
        others = signed(mix(key, _ALL_SAMPLES)), signed(mix(key, _THESE_SAMPLES, first))
        halves = np.append(mix_all(key, range(first, first + count)), others).view(np.int32).reshape(-1, 2)
        keys = np.empty((2, count + 2, 1), np.int32)
        keys[0, :, 0], keys[1, :, 0] = halves[:, _LOW] | 1, halves[:, 1 - _LOW]
        self._keys = torch.from_numpy(keys).to(device, non_blocking=True)
        """The samples' keys, that of all samples, and that of these samples."""
        if self._dims is not None:
            self._dims.begin(key)

    def bits(
        self, shape: Sequence[int], device: torch.device, role: Role, *, at_front: bool = False
    ) -> torch.Tensor:
        """Random bits for the next drawing call, for each sample its own: int32, of shape `shape`. With `at_front`
        the batch is looked for in the first dimension alone.

        Where no batch is found in `shape`, all samples share the bits. With the role `activation` and a first
        dimension other than 1, the bits then belong to this micro-batch, with a warning, once in the process.
        Advances torch's default CPU generator.
        """
        count, numbers = self._num_samples, _numbers_of_call()
        if at_front or self._dims is None or torch.compiler.is_compiling():
            dim = batch_dim(shape[:1] if at_front else shape, count, role)
        else:
            dim = self._dims.dim_of(numbers, shape, count, role)
        if dim == 1:
            ones = (1,) * (len(shape) - 2)
            factors, offsets = (
                part.view(1, count, *ones) for part in _keys_of_call(self._keys[:, :count], numbers, device)
            )
            elements = _elements((shape[0], *shape[2:]), device).unsqueeze(1)
            return _permute(torch.addcmul(offsets, factors, elements))
        of = self._keys[:, :count] if dim == 0 else self._keys[:, count : count + 1]
        if dim is None and role == "activation" and shape[:1] != (1,):
            of = self._keys[:, count + 1 :]
            warn_once(
                f"dropout of a tensor of shape {tuple(shape)}, in which the {count} samples computed at once were "
                "not found: its masks depend on how many samples a node computes at once"
            )
        num_keys = of.shape[1]
        # What a sample has: one element, its rows one after the other, or what lies behind the first dimension.
        sizes = (shape[0] // num_keys, *shape[1:]) if len(shape) else (1,)
        ones = (1,) * len(sizes)
        factors, offsets = (part.view(num_keys, *ones) for part in _keys_of_call(of, numbers, device))
        bits = _permute(torch.addcmul(offsets, factors, _elements(sizes, device)))
        return bits.reshape(tuple(shape))

    def batch_dim(self, shape: Sequence[int], role: Role) -> int | None:
        """The dimension of `shape`, 0 or 1, along which the samples of the present micro-batch lie; None where
        neither is."""
        return batch_dim(shape, self._num_samples, role)

    @property
    def _num_samples(self) -> int:
        # Not kept as a number, for which a compiled model would be compiled anew.
        return self._keys.shape[1] - 2


def threshold(probability: float) -> int:
    """The int32 number t such that 32 random bits, taken as int32, are below t with the given probability."""
    return min(round(probability * 2**32), 2**32 - 1) - 2**31


def uniform(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Uniform random numbers between 0 and 1, neither included, made from `bits`, with the shape of `bits` and
    type `dtype`.

    The numbers are evenly spaced: as many different ones as `dtype` resolves, and at most 2**32.
    """
    digits = 32 if dtype == torch.float64 else round(-math.log2(torch.finfo(dtype).eps))
    wide = dtype if dtype == torch.float64 else torch.float32
    return (bits >> (32 - digits)).to(wide).add_(0.5).mul_(2.0**-digits).add_(0.5).to(dtype)


def normal(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Standard normal random numbers made from `bits`, with the shape of `bits` and type `dtype`. None is further
    from 0 than 5.3, or 6.3 in float64."""
    wide = dtype if dtype == torch.float64 else torch.float32
    return uniform(bits, wide).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2)).to(dtype)


def warn_once(message: str) -> None:
    """Give `message` as a `TrainingWarning`, unless this process has already given it. While torch compiles,
    nothing is warned of."""
    if message not in _warned and not torch.compiler.is_compiling():
        _warned.add(message)
        warnings.warn(message, TrainingWarning, stacklevel=2)


def has_warned() -> bool:
    """Whether `warn_once` has warned: some numbers were drawn that do not belong to single samples."""
    return bool(_warned)


@contextlib.contextmanager
def fresh_warnings() -> Iterator[set[str]]:
    """Context in which `warn_once` gives every message anew. Yields those given within, until its end: then they
    are forgotten, and the messages given before are remembered again."""
    earlier = set(_warned)
    _warned.clear()
    try:
        yield _warned
    finally:
        _warned.clear()
        _warned.update(earlier)


def call_seed() -> int:
    """A 64-bit seed for the next drawing call. Advances torch's default CPU generator."""
    return mix(*_numbers_of_call())


def _keys_of_call(keys: torch.Tensor, numbers: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For a drawing call with these numbers A and B, the products a A and the offsets b ^ B (see the module) on
    `device`."""
    factor, offset = numbers
    factors, offsets = keys.to(device)
    return factors * factor, offsets ^ offset


def _numbers_of_call() -> Any:
    """The numbers A (made odd) and B of the next drawing call, 32 bits each. Advances torch's default CPU
    generator."""
    if torch.compiler.is_compiling():
        # Scalars: without sizes they are not taken for the samples', should the trace be run with the mode active.
        factor = torch.randint(*_INT32, (), dtype=torch.int32, device="cpu")
        return factor | 1, torch.randint(*_INT32, (), dtype=torch.int32, device="cpu")
    factor, offset = torch.empty(2, dtype=torch.int32, device="cpu").random_(*_INT32).tolist()
    return factor | 1, offset


def _permute(bits: torch.Tensor) -> torch.Tensor:
    return bits.addcmul_(bits, bits, value=2)


def _elements(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """h of the number of each element of a sample with these sizes: int32 of shape `sizes` on `device`, not always
    contiguous. A table that holds the largest sizes asked for is kept for each device and number of dimensions,
    since computing one takes longer than the bits themselves."""
    if torch.compiler.is_compiling():
        return _hash(_numbers(sizes, device))
    table = _tables.get((device, len(sizes)))
    if table is None or any(size > held for size, held in zip(sizes, table.shape, strict=True)):
        grown = tuple(sizes) if table is None else tuple(map(max, sizes, table.shape))
        if math.prod(grown) > _LARGEST_SPARE * max(math.prod(sizes), 0 if table is None else table.numel()):
            grown = tuple(sizes)
        table = _tables[device, len(sizes)] = _hash(_numbers(grown, device))
    for dim, size in enumerate(sizes):
        table = table.narrow(dim, 0, size)
    return table


def _numbers(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """The number of each element of a sample with these sizes (see the module): int32 of shape `sizes`."""
    numbers = torch.zeros((), dtype=torch.int32, device=device)
    for behind, size in enumerate(reversed(sizes)):
        stride = _STRIDES[behind] if behind < len(_STRIDES) else 2 * mix(behind) + 1
        coordinates = torch.arange(size, dtype=torch.int32, device=device) * _signed_32(stride)
        numbers = numbers + coordinates.view(size, *(1,) * behind)
    return numbers


def _signed_32(x: int) -> int:
    """The signed number with the same lowest 32 bits as `x`."""
    return (x + 2**31) % 2**32 - 2**31


def _hash(x: torch.Tensor) -> torch.Tensor:
    """A hash of each int32 number: a bijection whose every output bit depends on every input bit ("lowbias32" by
    C. Wellons)."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MULTIPLIERS[0]
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _MULTIPLIERS[1]
    return x ^ ((x >> 16) & 0xFFFF)
