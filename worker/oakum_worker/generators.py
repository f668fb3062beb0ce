"""Random generators that belong to one sample each, for code that does not draw from the global generators.

    from oakum_worker.generators import batch_rngs, sample_rng

    class Pictures(Dataset):
        def __getitem__(self, index):
            return augment(self.read(index), sample_rng())  # a numpy.random.Generator

    def collate(samples):
        return stack([blend(sample, rng) for sample, rng in zip(samples, batch_rngs(len(samples)))])

A generator that a data set or a model keeps advances with every sample that this process reads, so its numbers
depend on the number of nodes. The generators of this module are made anew for each sample. They are seeded from
(seed, epoch, sample) while the sample is read, and from (seed, step, sample) in `collate`, the model and `loss`.
Ask for them there each time; do not keep them.

Elsewhere, such as in `evaluate` or in the task's own threads, they are seeded from torch's global generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from oakum_worker.errors import TaskError
from oakum_worker.randomness.counters import mix, signed
from oakum_worker.randomness.keyed import call_seed
from oakum_worker.randomness.sample_randomness import present_samples
from oakum_worker.torch_internals import DisableTorchFunction

if TYPE_CHECKING:
    import numpy as np

_G = TypeVar("_G")


class Reading:
    """The sample that is being read at present, with the generators made for it."""

    def __init__(self) -> None:
        self.was_asked = False
        """Whether the data set asked for a generator."""
        self._key: int | None = None
        self._generators: dict[str, Any] = {}

    def begin(self, key: int | None) -> None:
        """Begin a sample whose generators are seeded from `key`; None for a sample that is only read as a
        probe."""
        self._key = key
        self._generators.clear()

    def generator(self, kind: str, make: Callable[[int], _G]) -> _G:
        """The sample's generator of this kind: made by `make` at the first call, the same object at later
        calls."""
        self.was_asked = True
        if kind not in self._generators:
            self._generators[kind] = make(mix(self._key or 0, *kind.encode()))
        generator: _G = self._generators[kind]
        return generator


_READING: ContextVar[Reading | None] = ContextVar("sample that is read", default=None)


@contextmanager
def reading() -> Iterator[Reading]:
    """Context in which `sample_generator` and `sample_rng` return generators of the sample that is being read.
    Yields the `Reading`, whose `begin` has to be called for each sample."""
    present = Reading()
    token = _READING.set(present)
    try:
        yield present
    finally:
        _READING.reset(token)


def sample_generator() -> torch.Generator:
    """A CPU generator for the sample that `__getitem__` or `samples` is making. Every call for one sample returns
    the same generator."""
    return _of_sample("torch", _torch_generator)


def sample_rng() -> np.random.Generator:
    """A NumPy generator for the sample that `__getitem__` or `samples` is making. Every call for one sample
    returns the same generator."""
    return _of_sample("numpy", _numpy_generator)


def batch_generators(num_samples: int) -> list[torch.Generator]:
    """A CPU generator for each sample of the batch that `collate`, the model or `loss` works on.

    Each call makes new generators. Raises `TaskError` where the batch has another number of samples.
    """
    return [_torch_generator(seed) for seed in _seeds_of_batch(num_samples)]


def batch_rngs(num_samples: int) -> list[np.random.Generator]:
    """A NumPy generator for each sample of the batch that `collate`, the model or `loss` works on.

    Each call makes new generators. Raises `TaskError` where the batch has another number of samples.
    """
    return [_numpy_generator(seed) for seed in _seeds_of_batch(num_samples)]


def _of_sample(kind: str, make: Callable[[int], _G]) -> _G:
    present = _READING.get()
    if present is not None:
        return present.generator(kind, make)
    return make(_call_seed())


def _seeds_of_batch(num_samples: int) -> list[int]:
    present = present_samples()
    call = _call_seed()
    if present is None:
        return [mix(call, number) for number in range(num_samples)]
    key, first, count = present
    if num_samples != count:
        raise TaskError(
            f"generators are asked for {num_samples} samples, and {count} are computed at once: ask for one for "
            "each"
        )
    return [mix(key, first + number, call) for number in range(count)]


def _call_seed() -> int:
    """A seed drawn from torch's global generator. Activation checkpoints and the layers of a chain restore that
    generator's state, so a pass that is computed again gets the same seed."""
    with DisableTorchFunction():  # No mode may answer for this draw.
        return call_seed()


def _torch_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(signed(seed))


def _numpy_generator(seed: int) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng(seed)
