"""The parts of a model's state in one grid.

What a set of ranks holds in common, and no other rank of the grid does, is a part: the block of a matrix that one
rank has, or the piece of a bias that four ranks have copies of. So parts do not overlap, and together they are the
whole state, whatever is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.holdings import Part


class GridParts:
    """The parts of one grid, and the blocks that each of them consists of.

    Where the model's layers are in different grids of one form, each layer has parts of its own: its home.
    """

    def __init__(
        self,
        name: str,
        num_ranks: int,
        blocks: Mapping[str, Sequence[Block]],
        homes: Mapping[str, int] | None = None,
        num_homes: int = 1,
    ) -> None:
        """`name` is the grid's name; `blocks` has for each parameter the block of every rank of the grid. `homes`
        has for each parameter the number of its home, by default 0 for all."""
        held = {parameter: _by_holders(by_rank) for parameter, by_rank in blocks.items()}
        everybody = tuple(range(num_ranks))
        holders = sorted({everybody, *(ranks for one in held.values() for ranks in one)})
        places = [(home, ranks) for home in range(num_homes) for ranks in holders]
        self._parts = {place: Part(len(places), number, grid=name) for number, place in enumerate(places)}
        self._everybody = everybody
        self._blocks = {
            parameter: {self._parts[_home(homes, parameter), ranks].number: block for ranks, block in one.items()}
            for parameter, one in held.items()
        }

    def common(self, home: int = 0) -> Part:
        """The part of a home that every rank of the grid holds; possibly of no parameter."""
        return self._parts[home, self._everybody]

    def of(self, position: int, homes: Collection[int] = (0,)) -> tuple[Part, ...]:
        """The parts of these homes that the rank with the place `position` in the grid holds."""
        return tuple(part for (home, ranks), part in self._parts.items() if home in homes and position in ranks)

    def block(self, parameter: str, number: int) -> Block | None:
        """The block of the parameter in part `number`; None where the part has nothing of it."""
        return self._blocks.get(parameter, {}).get(number)


def _home(homes: Mapping[str, int] | None, parameter: str) -> int:
    return 0 if homes is None else homes[parameter]


def _by_holders(by_rank: Sequence[Block]) -> dict[tuple[int, ...], Block]:
    """The different blocks of a parameter: ranks that have the block -> the block. `by_rank` has each rank's
    block."""
    ranks: dict[Block, list[int]] = {}
    for rank, block in enumerate(by_rank):
        ranks.setdefault(block, []).append(rank)
    return {tuple(holders): block for block, holders in ranks.items()}
