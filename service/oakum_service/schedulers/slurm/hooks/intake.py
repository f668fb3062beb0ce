"""What takes the reports of Slurm's hooks for one application, and tells of those that are missing."""

from __future__ import annotations

from collections.abc import Callable

from oakum_service import instruments
from oakum_service.db.engine import Sessions
from oakum_service.schedulers.port import HookEvent
from oakum_service.schedulers.slurm.hooks.event_writer import HookEventWriter
from oakum_service.schedulers.slurm.hooks.watch import HookWatch


class SlurmHookIntake:
    """Slurm's `HookIntake`."""

    def __init__(self, sessions: Sessions, readers: Sessions, tell: Callable[[HookEvent], None]) -> None:
        """`tell` receives each new event."""
        self.readers = readers
        self.writer = HookEventWriter(sessions, tell)
        self.watch = HookWatch(readers)

    def fault(self) -> str | None:
        """What to do where Slurm does not run the hooks that are installed; None if it does, or none is installed.
        Raises `SQLAlchemyError`."""
        return self.watch.missed().told or None

    def measure(self) -> None:
        """Set the metrics that count the jobs which the service has seen in Slurm, and no hook has reported."""
        missed = self.watch.known()
        instruments.HOOKS_MISSED.labels("start").set(len(missed.started))
        instruments.HOOKS_MISSED.labels("end").set(len(missed.ended))
