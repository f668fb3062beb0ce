"""Where the service enters this folder."""

from __future__ import annotations

import shlex

from pydantic_settings import SettingsConfigDict

from oakum_service.config import Settings, SettingsGroup
from oakum_service.schedulers.entry import SchedulerEntry
from oakum_service.schedulers.port import Scheduler
from openpbs.scheduler import PbsScheduler


class PbsSettings(SettingsGroup):
    """Settings of a scheduler's own."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_PBS_")

    pbsnodes: str = "pbsnodes -a -F json"
    """The command that tells the nodes."""


class PbsEntry(SchedulerEntry):
    """Opens a cluster of OpenPBS's."""

    def open(self, settings: Settings, secret: bytes) -> Scheduler:
        return PbsScheduler(shlex.split(PbsSettings().pbsnodes))

    def describe(self, settings: Settings) -> str:
        return "the nodes of OpenPBS"
