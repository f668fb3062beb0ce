"""A group of settings: given, or read from `OAKUM_*` variables, or from the configuration file, in this order."""

from __future__ import annotations

import os
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from oakum_service.config_file import chosen_file, nearest, read_groups, read_section
from oakum_service.errors import ConfigurationError
from oakum_service.scheduler_table import SCHEDULERS
from oakum_worker.errors import fault_of


class _FileSource(PydanticBaseSettingsSource):
    """Takes a group's settings from the configuration file."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Value, name and whether it is to be decoded, of one setting; pydantic does not call it here."""
        return read_section(group_of(self.settings_cls)).get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The settings in the file. Raises `ConfigurationError` for names that the group does not have."""
        group = group_of(self.settings_cls)
        section, known = dict(read_section(group)), setting_names(self.settings_cls)
        where = f"{chosen_file()}: " + (f"[{group}] " if group else "")
        for name in section:
            if name not in known:
                raise ConfigurationError(f"{where}{name} is no setting{nearest(name, known)}")
        groups = [name for name, field in self.settings_cls.model_fields.items() if _is_group(field)]
        expected = dict.fromkeys((*groups, *SCHEDULERS))  # a scheduler reads its own table
        if not group and (unknown := [table for table in read_groups() if table not in expected]):
            tables = ", ".join(f"[{table}]" for table in expected)
            raise ConfigurationError(f"{where}[{unknown[0]}] is no group of settings, expected {tables}")
        return section


class SettingsGroup(BaseSettings):
    """Settings read from environment variables, else from the configuration file. Raises `ConfigurationError`,
    which names each variable, or line of the file, with an invalid value."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigurationError("; ".join(self._explain(dict(item)) for item in error.errors())) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given counts more than the environment, and that more than the file."""
        return init_settings, env_settings, _FileSource(settings_cls)

    def _explain(self, item: dict[str, Any]) -> str:
        words = [str(part) for part in item["loc"]]
        variable, path = variable_of(type(self), "_".join(words)), chosen_file()
        in_file = path is not None and words[0] in read_section(group_of(type(self)))
        if in_file and variable_of(type(self), words[0]) not in os.environ:
            variable = f"{path}: " + ".".join([*filter(None, [group_of(type(self))]), *words])
        return f"{variable} is {item['input']!r}: {fault_of(item)}"


def variable_of(group: type[BaseSettings], name: str) -> str:
    """The environment variable of one setting of the group."""
    return (group.model_config["env_prefix"] + name).upper()


def group_of(group: type[BaseSettings]) -> str:
    """The name of the group's table in the configuration file; empty for the settings that are in no table."""
    return group.model_config["env_prefix"].removeprefix("OAKUM_").removesuffix("_").lower()


def setting_names(group: type[BaseSettings]) -> list[str]:
    """The names of the group's own settings, groups within it left out."""
    return [name for name, field in group.model_fields.items() if not _is_group(field)]


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, SettingsGroup)
