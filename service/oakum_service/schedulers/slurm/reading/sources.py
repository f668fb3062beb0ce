"""Opens the source of Slurm's state that the settings choose."""

from __future__ import annotations

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.reading.cli_source import CliSource
from oakum_service.schedulers.slurm.reading.pushed_source import PushedSource
from oakum_service.schedulers.slurm.reading.rest_source import RestSource
from oakum_service.schedulers.slurm.reading.state import StateSource


def open_source(settings: SlurmSettings) -> StateSource:
    """The source for `settings.state`. Raises `ConfigurationError` if it has no valid address."""
    if settings.state == "cli":
        return CliSource(settings)
    if settings.state == "rest":
        return RestSource(settings)
    return PushedSource(settings.push_max_age_s)
