"""The spatial accelerator of arXiv:1909.13654 as a model on paper: how many cycles a step of an RNN takes on it.

Hidden units are unrolled hu times; the reduction over [x; h], of length 2 H for inputs as wide as the state, ru
times in vectors of rv numbers. Each of the hu gates' reducers takes ru of the chip's vector units, so hu * gates *
ru of them in all, and a step takes ceil(H / hu) * ceil(2 H / (ru rv)) cycles. What a round computes beyond the
last unit or the last element is lost: its share is the fragmentation. A fixed tile, as in a matrix library, loses
much where the sizes do not divide H and 2 H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Tiling:
    """How the loop nest is unrolled: hu, ru and rv of the module's docstring."""

    hu: int
    ru: int
    rv: int

    def cycles(self, hidden: int) -> int:
        """Cycles of a step: ceil(H / hu) * ceil(2 H / (ru rv))."""
        return ceil(hidden / self.hu) * ceil(2 * hidden / (self.ru * self.rv))

    def units(self, gates: int) -> int:
        """Number of vector units that the tiling uses."""
        return self.hu * gates * self.ru

    def fragmentation(self, hidden: int) -> float:
        """The share of a step's multiplications whose results are not needed: 0 where the factors divide H and 2
        H."""
        done = self.cycles(hidden) * self.hu * self.ru * self.rv
        return 1 - 2 * hidden * hidden / done


@dataclass(frozen=True)
class Chip:
    """A spatial accelerator: `units` vector units, each of `rv` numbers a cycle."""

    units: int
    rv: int


def search(hidden: int, gates: int, chip: Chip) -> Tiling:
    """The tiling with the fewest cycles; of several the one with the fewest vector units, then the one with the
    smallest hu. Raises `ValueError` for a chip with fewer vector units than gates.

    Of all hu that need the same number of rounds only the smallest is looked at, and for each hu one ru, so about
    2 sqrt(H) tilings are compared.
    """
    if chip.units < gates:
        raise ValueError(
            f"{chip.units} vector units are too few: a hidden unit has {gates} gates, one unit for each"
        )
    widths = _fewest_for_rounds(hidden, min(hidden, chip.units // gates))
    return min(
        (_widest(hu, hidden, gates, chip) for hu in widths), key=lambda tiling: _rank(tiling, hidden, gates)
    )


def every_tiling(hidden: int, gates: int, chip: Chip) -> Iterator[Tiling]:
    """All tilings that fit the chip."""
    for hu in range(1, min(hidden, chip.units // gates) + 1):
        for ru in range(1, min(chip.units // (gates * hu), ceil(2 * hidden / chip.rv)) + 1):
            yield Tiling(hu, ru, chip.rv)


def _widest(hu: int, hidden: int, gates: int, chip: Chip) -> Tiling:
    """The tiling with the fewest cycles for a given hu, with the least ru that has them."""
    most = min(chip.units // (gates * hu), ceil(2 * hidden / chip.rv))
    rounds = ceil(2 * hidden / (most * chip.rv))
    return Tiling(hu, ceil(2 * hidden / (rounds * chip.rv)), chip.rv)


def _rank(tiling: Tiling, hidden: int, gates: int) -> tuple[int, int, int]:
    return tiling.cycles(hidden), tiling.units(gates), tiling.hu


def _fewest_for_rounds(total: int, most: int) -> Iterator[int]:
    """For each number of rounds ceil(total / width) that a width from 1 to `most` can give, the smallest such
    width; widths fall."""
    width = most
    while width >= 1:
        rounds = ceil(total / width)
        width = ceil(total / rounds)
        yield width
        width -= 1
