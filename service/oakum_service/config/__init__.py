"""Every setting of the service, in one typed object, read from the command line, `OAKUM_*` variables and the
configuration file, in this order: `Settings`, with a module for each group of settings."""

from __future__ import annotations

from oakum_service.config.group import SettingsGroup, group_of, setting_names, variable_of
from oakum_service.config.local_cluster import LocalClusterSettings
from oakum_service.config.notices import NoticeSettings
from oakum_service.config.quota import QuotaSettings
from oakum_service.config.settings import GROUPS, Settings
from oakum_service.config.slurm import SlurmSettings

__all__ = [
    "GROUPS",
    "LocalClusterSettings",
    "NoticeSettings",
    "QuotaSettings",
    "Settings",
    "SettingsGroup",
    "SlurmSettings",
    "group_of",
    "setting_names",
    "variable_of",
]
