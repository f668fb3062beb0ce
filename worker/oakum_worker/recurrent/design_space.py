"""How the loops may be unrolled, tiled and dealt to threads, and which way a cost model takes for the fastest.

In the words of arXiv:1909.13654: `hu` hidden units are computed at once, the reduction over [x; h] is unrolled
`ru` times, a vector holds `rv` numbers. On a processor the vector's lanes are hidden units, so that a unit's gates
end in registers without a sum over lanes: hu = unit_tiles * rv.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from oakum_worker.recurrent.machine import Processor

Cell = Literal["lstm", "gru"]
GATES: dict[Cell, int] = {"lstm": 4, "gru": 3}
_TILES = (1, 4, 8, 16, 32, 64)
_NON_LINEARITY_CYCLES = 25.0  # of a vector


@dataclass(frozen=True)
class Shape:
    """The sizes of one direction of one recurrent layer, for which a choice is sought."""

    cell: Cell
    hidden: int
    input: int
    steps: int
    batch: int = 1
    number_bytes: int = 4

    @property
    def gates(self) -> int:
        """Gates of a hidden unit, each with a row of weights."""
        return GATES[self.cell]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, W_ih and W_hh, that a step of [x; h] reads."""
        return self.gates * self.hidden * (self.input + self.hidden) * self.number_bytes


@dataclass(frozen=True)
class LoopDesign:
    """One way to run the loops, called a choice: one point of the design space."""

    unit_tiles: int
    """Vectors of hidden units that are computed at once."""
    unroll: int
    """ru: steps of the reduction with sums of their own, since a sum waits some cycles for its last addition."""
    tile: int
    """Time steps whose W_ih x is computed at once. 1: within the step, as in the paper, with nothing stored."""
    threads: int
    serpentine: bool
    """Whether each second step walks through the weights backwards, from those still in the cache."""

    def hidden_at_once(self, lanes: int) -> int:
        """hu, for vectors of `lanes` numbers."""
        return self.unit_tiles * lanes


@dataclass(frozen=True)
class DesignSearch:
    """Result of a search: the best choice, its predicted seconds of a time step, and how many choices were
    compared."""

    choice: LoopDesign
    predicted_s: float  # of a step
    looked_at: int  # choices whose time was computed


def space(shape: Shape, machine: Processor, threads: int | None = None) -> Iterator[LoopDesign]:
    """Every choice for a shape on a machine, with at most `threads` threads (all cores if None)."""
    for count in thread_counts(threads or machine.cores):
        for tile in tiles(shape):
            for unit_tiles, unroll in _unrollings(shape):
                for serpentine in (False, True):
                    yield LoopDesign(unit_tiles, unroll, tile, count, serpentine)


def thread_counts(most: int) -> list[int]:
    """The numbers of threads to consider: 1, 2, 4, ... below `most`, and `most` itself."""
    counts = {1, most}
    count = 2
    while count < most:
        counts.add(count)
        count *= 2
    return sorted(counts)


def tiles(shape: Shape) -> list[int]:
    """The numbers of time steps whose W_ih x may be computed at once: those that are not much longer than the
    sequence."""
    return [tile for tile in _TILES if tile < 2 * shape.steps or tile == 1]


def step_s(shape: Shape, choice: LoopDesign, machine: Processor) -> float:
    """Predicted seconds of one time step: arithmetic or reading, whichever takes longer, and the threads' waiting
    for each other."""
    return max(_arithmetic_s(shape, choice, machine), reading_s(shape, choice, machine)) + _meeting_s(
        choice, machine
    )


def search(shape: Shape, machine: Processor, threads: int | None = None) -> DesignSearch:
    """The choice with the lowest predicted time; of several equal ones the first.

    Reading alone bounds a choice's time from below, so choices whose reading would take as long as the best choice
    so far are not predicted.
    """
    best: DesignSearch | None = None
    looked_at = 0
    for choice in space(shape, machine, threads):
        if best and reading_s(shape, choice, machine) + _meeting_s(choice, machine) >= best.predicted_s:
            continue
        looked_at += 1
        seconds = step_s(shape, choice, machine)
        if best is None or seconds < best.predicted_s:
            best = DesignSearch(choice, seconds, looked_at)
    assert best is not None
    return DesignSearch(best.choice, best.predicted_s, looked_at)


def reading_s(shape: Shape, choice: LoopDesign, machine: Processor) -> float:
    """Predicted seconds for reading the weights that a time step needs from caches and memory."""
    recurrent = shape.gates * shape.hidden * shape.hidden * shape.number_bytes
    inputs = shape.weight_bytes - recurrent
    read = recurrent + inputs / min(choice.tile, shape.steps)
    kept = recurrent + (inputs if choice.tile == 1 else 0)  # what the next step reads again
    share = kept / choice.threads
    if share <= 0.8 * machine.l2_bytes:
        return read / choice.threads / machine.l2_bytes_per_s
    in_cache = 0.0
    if kept <= 0.8 * machine.l3_bytes:
        in_cache = 1.0
    elif choice.serpentine:
        in_cache = 0.8 * machine.l3_bytes / kept
    memory = min(choice.threads * machine.memory_bytes_per_s, machine.memory_bytes_per_s_of_all)
    cached = kept * in_cache
    return cached / (choice.threads * machine.l3_bytes_per_s) + (read - cached) / memory


def _arithmetic_s(shape: Shape, choice: LoopDesign, machine: Processor) -> float:
    lanes = machine.vector_bytes // shape.number_bytes
    vectors = ceil(ceil(shape.hidden / lanes) / choice.threads)
    by_state = _reduction_cycles(shape, choice, machine, shape.batch) * shape.hidden
    rows = shape.batch if choice.tile == 1 else min(shape.batch * min(choice.tile, shape.steps), 4)
    by_input = _reduction_cycles(shape, choice, machine, rows) * shape.input
    last = ceil(vectors / choice.unit_tiles) * choice.unit_tiles / vectors  # a group that is not full
    cycles = (by_state * last + by_input) * shape.batch + 5 * _NON_LINEARITY_CYCLES * shape.batch
    return vectors * cycles / machine.cycles_per_s


def _reduction_cycles(shape: Shape, choice: LoopDesign, machine: Processor, rows: int) -> float:
    """Cycles for one vector of hidden units, one element of the sum over [x; h], and one of `rows` sequences that
    are computed together."""
    rows = 4 if rows >= 4 else 2 if rows >= 2 else 1
    unit_tiles, unroll = (choice.unit_tiles, choice.unroll) if rows == 1 else (1, min(choice.unroll, 4 // rows))
    fmas = shape.gates * unit_tiles * rows
    loads = shape.gates * unit_tiles + rows
    cycles = max(fmas / machine.fmas_per_cycle, loads / machine.loads_per_cycle, machine.fma_latency / unroll)
    if fmas * unroll + rows + 1 > machine.registers:
        cycles *= 2  # sums are spilled
    return cycles / (unit_tiles * rows)


def _meeting_s(choice: LoopDesign, machine: Processor) -> float:
    return machine.barrier_s * (choice.threads - 1)


def _unrollings(shape: Shape) -> tuple[tuple[int, int], ...]:
    if shape.batch > 1:
        return (1, 1), (1, 2)
    return (1, 1), (1, 2), (1, 4), (2, 1), (2, 2)
