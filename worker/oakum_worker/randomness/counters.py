"""Counter-based randomness: every random choice follows from numbers that all ranks know.

Nothing here keeps a state that would have to travel with the trainer when it moves, shrinks or grows. The mixer
is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), in exact
integer arithmetic, so the same numbers give the same choices with every version of torch and on every machine.
"""

from __future__ import annotations

import random
import sys

import numpy as np
import numpy.typing as npt
import torch

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(*numbers: int) -> int:
    """A 64-bit hash of the numbers, which depends on their order; 0 or more."""
    state = 0
    for number in numbers:
        state = _scramble((state ^ (number & _MASK)) + _GOLDEN & _MASK)
    return state


def permutation(size: int, key: int) -> torch.Tensor:
    """The numbers 0 to `size` - 1 in a random order that depends on `key` alone: int64, shape (size,).

    Each number gets a sort key of its own: the hash is a bijection on 64 bits, so no two sort keys are equal and
    the order does not depend on how the sort treats ties. Takes 24 bytes and about 0.1 us for each number.
    """
    return torch.argsort(torch.from_numpy(mix_all(key, range(size))))


def mix_all(key: int, numbers: range) -> npt.NDArray[np.int64]:
    """A 64-bit hash of (`key`, number) for each of `numbers`, as a signed number, of shape (len(numbers),);
    different numbers get different hashes. By NumPy, whose short operations take a third of the time of
    torch's."""
    x = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64).view(np.uint64)
    x *= np.uint64(_GOLDEN)
    x += np.uint64(key & _MASK)
    for bits, factor in ((30, _FIRST), (27, _SECOND)):
        x ^= x >> np.uint64(bits)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x.view(np.int64)


def seed_everything(seed: int) -> None:
    """Seed the global generators that tasks draw from: torch's on the CPU and on accelerators in use, Python's,
    and NumPy's if NumPy is imported."""
    seed_host(seed)
    seed_devices(seed)


def seed_host(seed: int) -> None:
    """Seed the global generators that draw on the CPU: torch's, Python's, and NumPy's if NumPy is imported."""
    # `torch.manual_seed` also prepares the devices that are not in use, which takes ten times as long as the rest.
    torch.default_generator.manual_seed(signed(seed & _MASK))
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)


def seed_devices(seed: int) -> None:
    """Seed torch's generators of all CUDA and XPU devices. Does nothing where none of these is in use."""
    for device in (torch.cuda, torch.xpu):
        if device.is_initialized():
            device.manual_seed_all(signed(seed & _MASK))


def _scramble(x: int) -> int:
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def signed(x: int) -> int:
    """The signed number with the same 64 bits (two's complement) as the unsigned `x`; torch has signed numbers
    only."""
    return x - 2**64 if x >= 2**63 else x
