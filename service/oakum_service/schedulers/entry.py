"""What the folder of a scheduler offers the service beside the adapter itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from fastapi import APIRouter

from oakum_service.config import Settings
from oakum_service.db.engine import Sessions
from oakum_service.schedulers.port import HookEvent, Scheduler


class HookIntake(Protocol):
    """Takes the reports of a scheduler's hooks for one application, where the entry's routes find it in
    `app.state.hook_intakes`, by the scheduler's name."""

    def fault(self) -> str | None:
        """Why hooks that are installed do not tell of jobs, with what to do; None if they do, or none is
        installed. Raises `SQLAlchemyError`."""

    def measure(self) -> None:
        """Set the metrics that are known at the moment of asking only. Does not wait for the database."""


class SchedulerEntry(ABC):
    """Where the service enters the folder of a scheduler. `scheduler_table` names the class of each."""

    router: APIRouter | None = None
    """Routes for the scheduler's hooks. The service asks for a token of the role hook or admin before. They are
    there whichever scheduler is configured, so that one OpenAPI document holds for all."""

    @abstractmethod
    def open(self, settings: Settings, secret: bytes) -> Scheduler:
        """The adapter for these settings. `secret` is the installation's own. Raises `ConfigurationError` if the
        scheduler cannot be used with the settings."""

    @abstractmethod
    def describe(self, settings: Settings) -> str:
        """What the service watches with these settings, to go on after "Oakum watches"."""

    def check(self, settings: Settings) -> None:  # noqa: B027 - most have nothing to check before they are opened
        """Raise `ConfigurationError` for what can be found wrong before the database is opened."""

    def open_hooks(
        self, sessions: Sessions, readers: Sessions, tell: Callable[[HookEvent], None]
    ) -> HookIntake | None:
        """What takes the reports of hooks for an application, and hands each new event to `tell`, from any thread;
        None where the scheduler has no hooks."""
        return None
