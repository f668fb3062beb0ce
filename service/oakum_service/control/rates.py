"""Rates: how fast trainers were measured to train at each number of nodes, for their scalability curves.

Only undisturbed training counts: what lies between two reports of one generation, its first steps left out. A
report's rate is rank 0's own, by its own clock, over the steps since its last report; here it stands for all
samples since the last report that was seen. Rates are gathered in memory for a few seconds before they are
written, so a controller that ends loses no more than these.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models import MeasuredRate
from oakum_solver.exploration import Exploration
from oakum_worker.protocol import Progress

_WINDOW_S = 5.0
"""Seconds of training that make one measurement; no trainer's are written more often."""
_KEPT_WINDOWS = 16
_FIRST_STEPS = 3
"""Steps after a switch that say nothing: connections, allocators and caches warm up."""
_LONGEST_S = 86_400.0
"""No step takes longer: what claims to is an error."""
_MOST_SAMPLES = 2**53


@dataclass
class _Seen:
    """The last progress taken in of a trainer."""

    generation: int
    settled: int
    """Step after which the generation trains as it will."""
    step: int
    samples: int


@dataclass
class _Window:
    """Training at one size that is not written yet."""

    seconds: float = 0.0
    samples: int = 0


class RateKeeper:
    """Gathers each trainer's rates from its progress. Remembers only what is not written yet."""

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration
        self._seen: dict[str, _Seen] = {}
        self._windows: dict[tuple[str, int], _Window] = {}

    def take(self, session: Session, trainer: str, progress: Progress) -> None:
        """Count what a trainer has done since its last progress; write a window that is full."""
        samples, rate = self._undisturbed_samples(trainer, progress), progress.samples_per_s
        if not samples or not progress.nodes or not rate or not 0 < samples / rate < _LONGEST_S:
            return
        window = self._windows.setdefault((trainer, progress.nodes), _Window())
        window.samples += samples
        window.seconds += samples / rate
        if window.seconds >= _WINDOW_S:
            self._write(session, trainer, progress.nodes, window)
            del self._windows[trainer, progress.nodes]

    def forget_all_but(self, trainers: Collection[str]) -> None:
        """Forget trainers that have ended."""
        self._seen = {trainer: seen for trainer, seen in self._seen.items() if trainer in trainers}
        self._windows = {key: window for key, window in self._windows.items() if key[0] in trainers}

    def _undisturbed_samples(self, trainer: str, progress: Progress) -> int:
        """Samples since the last progress that was seen, if no switch and no first step lies between."""
        seen = self._seen.get(trainer)
        if seen is None or progress.generation > seen.generation:
            settled = progress.step + _FIRST_STEPS - 1  # it has made at least one step by now
            self._seen[trainer] = _Seen(progress.generation, settled, progress.step, progress.samples)
            return 0
        if progress.generation < seen.generation or progress.step <= seen.step:
            return 0  # the word of a rank 0 of before, or one that was heard already
        samples = progress.samples - seen.samples
        settled = seen.step >= seen.settled
        seen.step, seen.samples = progress.step, progress.samples
        return samples if settled and 0 < samples < _MOST_SAMPLES else 0

    def _write(self, session: Session, trainer: str, nodes: int, window: _Window) -> None:
        rows = {row.nodes: row for row in measured_rates(session, [trainer]).get(trainer, [])}
        row = rows.get(nodes)
        if row is None:
            row = MeasuredRate(trainer_id=trainer, nodes=nodes, recent=[])
            row.seconds = row.samples = row.explored_s = 0.0
            session.add(row)
        trained_s = {size: row.seconds for size, row in rows.items()}
        budget = self._exploration.budget(trained_s, {size: row.explored_s for size, row in rows.items()})
        if self._exploration.tries(nodes, trained_s, budget):
            row.explored_s += min(window.seconds, self._exploration.min_seconds - row.seconds)
        row.seconds += window.seconds
        row.samples += window.samples
        row.recent = [*row.recent[1 - _KEPT_WINDOWS :], [window.seconds, window.samples / window.seconds]]


def measured_rates(session: Session, trainers: Collection[str]) -> dict[str, list[MeasuredRate]]:
    """Trainer id -> what was measured of it, the smallest size first."""
    rows = session.execute(
        select(MeasuredRate)
        .where(MeasuredRate.trainer_id.in_(trainers))
        .order_by(MeasuredRate.trainer_id, MeasuredRate.nodes)
    ).scalars()
    found: dict[str, list[MeasuredRate]] = {}
    for row in rows:
        found.setdefault(row.trainer_id, []).append(row)
    return found
