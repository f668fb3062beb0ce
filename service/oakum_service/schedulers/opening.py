"""Opens the scheduler that the settings name, by its line in the table."""

from __future__ import annotations

from pkgutil import resolve_name

from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError
from oakum_service.scheduler_table import SCHEDULERS, scheduler_names
from oakum_service.schedulers.entry import SchedulerEntry
from oakum_service.schedulers.port import Scheduler


def entry_of(name: str) -> SchedulerEntry:
    """The entry of the scheduler of this name in the table. Imports the scheduler's modules. Raises
    `ConfigurationError` for a name that is not there."""
    if name not in SCHEDULERS:
        raise ConfigurationError(f"scheduler {name!r}: expected {scheduler_names()}")
    entry = resolve_name(SCHEDULERS[name].entry)()
    assert isinstance(entry, SchedulerEntry)
    return entry


def entries() -> dict[str, SchedulerEntry]:
    """Name -> entry, of every scheduler in the table."""
    return {name: entry_of(name) for name in SCHEDULERS}


def open_scheduler(settings: Settings, secret: bytes) -> Scheduler:
    """The adapter for the configured scheduler. Raises `ConfigurationError` if it cannot be used with these
    settings."""
    return entry_of(settings.scheduler).open(settings, secret)
