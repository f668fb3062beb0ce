"""Yardsticks of a replay: what the same trainers would achieve if rescaling were free.

BFTrainer (arXiv:2106.12091, section 4) defines the efficiency U = A_e / A_s. A_e is what was trained; A_s is what
the same trainers would achieve on N_eq dedicated nodes with the best split, N_eq being the mean number of idle
nodes. The zero-cost bound is the U of the log itself if every stall and start-up took 0 s, so that nodes moved
freely at every event. Both need the best split of N nodes; one dynamic program gives it for every N.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BestSplits:
    """The best splits of 0, 1, ... N nodes among J trainers; a split may leave nodes over."""

    value: Floats
    """Element i is the value of the best split of at most i nodes; shape (N + 1,)."""
    choice: NDArray[np.int32]
    """Element (j, i) is the number of nodes of trainer j if the trainers 0 to j share i nodes; shape (J, N +
    1)."""

    def sizes(self, nodes: int) -> list[int]:
        """Nodes of each trainer in the best split of `nodes`."""
        sizes = []
        for row in self.choice[::-1]:
            sizes.append(int(row[nodes]))
            nodes -= sizes[-1]
        return sizes[::-1]


def best_splits(values: Floats, num_nodes: int) -> BestSplits:
    """Compute the best splits by an exact dynamic program over trainers, in O(J N M) with M the largest size.
    Returns the splits of 0, 1, ... N nodes.

    `values`, shape (J, M + 1), is the worth of trainer j at m nodes: -inf where m is not allowed, 0 at m = 0.
    """
    best = np.zeros(num_nodes + 1)
    choice = np.zeros((len(values), num_nodes + 1), dtype=np.int32)
    for trainer, row in enumerate(values):
        before = best
        best = before.copy()
        for size in np.flatnonzero(np.isfinite(row[: num_nodes + 1])).tolist():
            candidate = before[: num_nodes + 1 - size] + row[size]
            better = candidate > best[size:]
            best[size:][better] = candidate[better]
            choice[trainer, size:][better] = size
    return BestSplits(best, choice)


@dataclass(eq=False)
class _Progress:
    """A trainer in the computation of the ideal: its values, and how much it has achieved."""

    values: Floats
    """Worth per second at m nodes, shape (M + 1,)."""
    submit_s: float
    wanted: float
    """Worth of all its samples together; infinite for an endless trainer."""
    achieved: float = 0.0


def ideal_achievement(
    values: Sequence[Floats],
    submit_s: Sequence[float],
    wanted: Sequence[float],
    idle: Iterable[tuple[float, float, float]],
    most_nodes: int,
    max_trainers: int | None = None,
) -> float:
    """Worth that the trainers achieve together on the nodes `idle` without any cost of rescaling.

    `values[j]` is trainer j's worth per second at 0, 1, ... nodes; `wanted[j]` is the worth of all its samples,
    infinite for an endless trainer. `idle` are consecutive intervals (start_s, end_s, nodes); a fractional number
    of nodes means that the two whole numbers around it share the time. At most `max_trainers` run at once, first
    come, first served.
    """
    waiting = [_Progress(*one) for one in zip(values, submit_s, wanted, strict=True)]
    waiting.sort(key=lambda progress: progress.submit_s)
    ended = 0.0
    live: list[_Progress] = []
    splits: BestSplits | None = None
    total = 0.0
    for start_s, end_s, nodes in idle:
        now_s = start_s
        while now_s < end_s:
            room = len(waiting) if max_trainers is None else max_trainers - len(live)
            while room > 0 and waiting and waiting[0].submit_s <= now_s:
                live.append(waiting.pop(0))
                room -= 1
                splits = None
            if splits is None:
                splits = best_splits(_stacked([progress.values for progress in live]), most_nodes)
            until_s = min([end_s, *(p.submit_s for p in waiting[:1] if p.submit_s > now_s and room > 0)])
            if all(progress.wanted == np.inf for progress in live):
                total += _between(splits.value, nodes) * (until_s - now_s)
                now_s = until_s
                continue
            rates = _rates(live, splits, nodes)
            now_s, seconds = _first_end(live, rates, now_s, until_s)
            for progress, rate in zip(live, rates, strict=True):
                progress.achieved += rate * seconds
            if finished := [p for p in live if p.achieved >= p.wanted * (1 - 1e-12)]:
                ended += sum(progress.wanted for progress in finished)
                live = [progress for progress in live if progress not in finished]
                splits = None
    return total + ended + sum(progress.achieved for progress in live)


def _first_end(live: list[_Progress], rates: list[float], now_s: float, until_s: float) -> tuple[float, float]:
    """(time of the next end of a trainer at these rates, or `until_s` if that is earlier; seconds until then)."""
    left_s = [
        (progress.wanted - progress.achieved) / rate
        for progress, rate in zip(live, rates, strict=True)
        if rate > 0
    ]
    seconds = min([until_s - now_s, *left_s])
    return (until_s if seconds == until_s - now_s else now_s + seconds), seconds


def _rates(live: list[_Progress], splits: BestSplits, nodes: float) -> list[float]:
    low = int(nodes)
    share = nodes - low
    rates = [float(p.values[size]) for p, size in zip(live, splits.sizes(low), strict=True)]
    if share > 0:
        upper = [float(p.values[size]) for p, size in zip(live, splits.sizes(low + 1), strict=True)]
        rates = [(1 - share) * a + share * b for a, b in zip(rates, upper, strict=True)]
    return rates


def _between(value: Floats, nodes: float) -> float:
    low = int(nodes)
    share = nodes - low
    return float(value[low] if share == 0 else (1 - share) * value[low] + share * value[low + 1])


def _stacked(rows: list[Floats]) -> Floats:
    width = max((len(row) for row in rows), default=1)
    table = np.full((len(rows), width), -np.inf)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
