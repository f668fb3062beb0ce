"""Measures how fast each trainer trains at each number of nodes, for its scalability curve.

Only undisturbed training counts: the steps between two reports of one generation, without the generation's first
steps. The rate in a report is rank 0's own over the steps since its previous report; here it stands for all
samples since the last report that was read. Rates are collected in memory for a few seconds before they are
written, so a controller that ends loses no more than those seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.progress import MeasuredRate
from oakum_solver.exploration import Exploration
from oakum_solver.learnt_curves import WINDOW_S, SizeRate, after_window
from oakum_worker.protocol import TrainingProgress

_FIRST_STEPS = 3
"""Number of steps after a switch that do not count: connections, allocators and caches warm up."""
_LONGEST_S = 86_400.0
"""A report that claims more seconds than this is not believed."""
_MOST_SAMPLES = 2**53


@dataclass
class _LastProgress:
    """What was last read of a trainer's progress."""

    generation: int
    settled: int
    """Step from which on the generation trains undisturbed."""
    step: int
    samples: int


@dataclass
class _Window:
    """Seconds and samples of a trainer's training at one number of nodes that are not in the database yet."""

    seconds: float = 0.0
    samples: int = 0


class RateRecorder:
    """Collects each trainer's rates from its progress and writes them to the database. Keeps in memory only what
    is not written yet."""

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration
        self._newest: dict[str, _LastProgress] = {}
        self._windows: dict[tuple[str, int], _Window] = {}

    def take(self, session: Session, trainer_id: str, progress: TrainingProgress) -> None:
        """Count the training since the trainer's last progress; write the window when it is full."""
        samples, rate = self._undisturbed_samples(trainer_id, progress), progress.samples_per_s
        if not samples or not progress.nodes or not rate or not 0 < samples / rate < _LONGEST_S:
            return
        window = self._windows.setdefault((trainer_id, progress.nodes), _Window())
        window.samples += samples
        window.seconds += samples / rate
        if window.seconds >= WINDOW_S:
            self._write(session, trainer_id, progress.nodes, window)
            del self._windows[trainer_id, progress.nodes]

    def forget_all_but(self, trainers: Collection[str]) -> None:
        """Drop what is remembered of trainers that are not among `trainers`: they have ended."""
        self._newest = {
            trainer_id: progress for trainer_id, progress in self._newest.items() if trainer_id in trainers
        }
        self._windows = {key: window for key, window in self._windows.items() if key[0] in trainers}

    def _undisturbed_samples(self, trainer_id: str, progress: TrainingProgress) -> int:
        """Samples that the trainer has trained since the last progress that was read; 0 if a switch or a
        generation's first step lies in between."""
        last = self._newest.get(trainer_id)
        if last is None or progress.generation > last.generation:
            settled = progress.step + _FIRST_STEPS - 1  # it has made at least one step by now
            self._newest[trainer_id] = _LastProgress(progress.generation, settled, progress.step, progress.samples)
            return 0
        if progress.generation < last.generation or progress.step <= last.step:
            return 0  # from an earlier rank 0, or read before
        samples = progress.samples - last.samples
        settled = last.step >= last.settled
        last.step, last.samples = progress.step, progress.samples
        return samples if settled and 0 < samples < _MOST_SAMPLES else 0

    def _write(self, session: Session, trainer_id: str, nodes: int, window: _Window) -> None:
        rows = {row.nodes: row for row in measured_rates(session, [trainer_id]).get(trainer_id, [])}
        rates = {size: size_rate(row) for size, row in rows.items()}
        rate = after_window(rates, nodes, window.seconds, window.samples, self._exploration)
        row = rows.get(nodes)
        if row is None:
            row = MeasuredRate(trainer_id=trainer_id, nodes=nodes)
            session.add(row)
        row.seconds, row.samples = rate.seconds, rate.samples
        row.explored_s, row.recent = rate.explored_s, rate.recent


def size_rate(row: MeasuredRate) -> SizeRate:
    """What the row says."""
    return SizeRate(row.nodes, row.seconds, row.samples, row.explored_s, row.recent)


def measured_rates(session: Session, trainers: Collection[str]) -> dict[str, list[MeasuredRate]]:
    """Trainer id -> its measured rates, the smallest size first."""
    rows = session.execute(
        select(MeasuredRate)
        .where(MeasuredRate.trainer_id.in_(trainers))
        .order_by(MeasuredRate.trainer_id, MeasuredRate.nodes)
    ).scalars()
    rates: dict[str, list[MeasuredRate]] = {}
    for row in rows:
        rates.setdefault(row.trainer_id, []).append(row)
    return rates
