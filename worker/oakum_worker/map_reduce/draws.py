"""Uniform random numbers that follow from integers alone, on any machine and without torch.

Each number is a hash of its key by the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
number generators, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np


def _mixed(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(values ^ (values >> np.uint64(31)))


def uniform(*key: int, examples: np.ndarray, units: int) -> np.ndarray:
    """Numbers in [0, 1), float64 of shape (examples, units), that follow from the key and the numbers of
    example and unit."""
    seed = np.zeros(1, dtype=np.uint64)
    for part in key:
        seed = _mixed(seed ^ np.uint64(part % 2**64))
    rows = _mixed(seed ^ examples.astype(np.uint64))
    cells = _mixed(rows[:, None] ^ _mixed(np.arange(units, dtype=np.uint64))[None, :])
    return np.asarray((cells >> np.uint64(11)).astype(np.float64) * 2.0**-53)
