"""What the folder of a scheduler offers the service beside the adapter itself."""

from __future__ import annotations

from abc import ABC, abstractmethod

from oakum_service.config import Settings
from oakum_service.schedulers.port import Scheduler


class SchedulerEntry(ABC):
    """Where the service enters the folder of a scheduler. `scheduler_table` names the class of each."""

    @abstractmethod
    def open(self, settings: Settings, secret: bytes) -> Scheduler:
        """The adapter for these settings. `secret` is the installation's own. Raises `ConfigurationError` if the
        scheduler cannot be used with the settings."""

    @abstractmethod
    def describe(self, settings: Settings) -> str:
        """What the service watches with these settings, to go on after "Oakum watches"."""

    def check(self, settings: Settings) -> None:  # noqa: B027 - most have nothing to check before they are opened
        """Raise `ConfigurationError` for what can be found wrong before the database is opened."""
