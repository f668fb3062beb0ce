"""Which source of Slurm's state the settings ask for."""

from __future__ import annotations

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.cli_source import CliSource
from oakum_service.schedulers.slurm.pushed_source import PushedSource
from oakum_service.schedulers.slurm.rest_source import RestSource
from oakum_service.schedulers.slurm.state import StateSource


def open_source(settings: SlurmSettings) -> StateSource:
    """The source for `settings.state`. Raises `ConfigurationError` where it lacks an address."""
    if settings.state == "cli":
        return CliSource(settings)
    if settings.state == "rest":
        return RestSource(settings)
    return PushedSource(settings.push_max_age_s)
