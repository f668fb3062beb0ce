"""The configuration file: TOML whose keys are the settings' names, with a table for each group of settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from oakum_service.errors import ConfigurationError

VARIABLE = "OAKUM_CONFIG"
DEFAULT = Path("/etc/oakum/oakum.toml")


def chosen_file() -> Path | None:
    """The configuration file in force: the one that `OAKUM_CONFIG` names, else the usual one if it exists. None
    where there is none, or `OAKUM_CONFIG` is empty."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    return DEFAULT if DEFAULT.exists() else None


def read_section(group: str) -> Mapping[str, Any]:
    """What the configuration file says of one group of settings, by their names; of those that are in no table if
    `group` is empty. Raises `ConfigurationError` for a file that cannot be read or is no TOML."""
    path = chosen_file()
    if path is None:
        return {}
    try:
        state = path.stat()
        document = _parse(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise ConfigurationError(
            f"the configuration file {path} cannot be read: {error.strerror}; set {VARIABLE} to another "
            f"file, or to "
            "nothing to do without"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration file {path} is no TOML: {error}") from error
    if not group:
        return {name: value for name, value in document.items() if not isinstance(value, dict)}
    section = document.get(group, {})
    if not isinstance(section, dict):
        raise ConfigurationError(f"{path}: {group} is {section!r}, expected a table [{group}]")
    return section


def read_groups() -> list[str]:
    """The names of the configuration file's tables."""
    path = chosen_file()
    read_section("")
    if path is None:
        return []
    state = path.stat()
    document = _parse(path, state.st_mtime_ns, state.st_size)
    return [name for name, value in document.items() if isinstance(value, dict)]


@lru_cache(maxsize=4)
def _parse(path: Path, _modified_ns: int, _size: int) -> Mapping[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def nearest(name: str, known: Sequence[str]) -> str:
    """Advice for a name that nobody knows: the known one that is most like it, or empty."""
    matches = get_close_matches(name, known, n=1)
    return f": did you mean {matches[0]}?" if matches else ""
