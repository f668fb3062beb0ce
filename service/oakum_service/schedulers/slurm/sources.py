"""Which source of Slurm's state the settings ask for."""

from __future__ import annotations

from oakum_service.config import SlurmSettings
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.slurm.cli_source import CliSource
from oakum_service.schedulers.slurm.rest_source import RestSource
from oakum_service.schedulers.slurm.state import StateSource


def open_source(settings: SlurmSettings) -> StateSource:
    """The source for `settings.state`. Raises `ConfigurationError` for `push`, where nothing is read."""
    if settings.state == "cli":
        return CliSource(settings)
    if settings.state == "rest":
        return RestSource(settings)
    raise ConfigurationError(f"OAKUM_SLURM_STATE is {settings.state!r}: a pushed state is received, not read")
