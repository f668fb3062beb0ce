"""Which fragments the tasks of our job arrays stand for: read from the files that their submission left.

A job says only its array's name and its own index. The file outlives a crash between `sbatch` and its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from oakum_service.errors import SchedulerError
from oakum_worker.launch import ARRAY_NAME, FragmentArray

_log = logging.getLogger("oakum.slurm")


@dataclass(frozen=True)
class Array:
    """One job array of ours."""

    fragments: tuple[str, ...]
    """By the task's index."""
    begun: frozenset[int] = frozenset()
    """Tasks that have had a record of their own: the one of those that still wait is not theirs any more."""


class ArrayBook:
    """The arrays that Slurm shows. Not for several threads."""

    def __init__(self, fragments_dir: Path) -> None:
        self._fragments_dir = fragments_dir
        self._known: dict[str, Array] = {}
        self._unknown: set[str] = set()

    def look_up(self, tasks: Iterable[tuple[str, int | None]]) -> Mapping[str, Array]:
        """The arrays of all these tasks, by name; a task is its array's name and its index, None: those that wait.

        Arrays that are not among them are forgotten; those whose file is gone, or is none, are left out. Raises
        `SchedulerError` for a file that cannot be read now: its fragments must not be taken for strangers.
        """
        seen: dict[str, set[int]] = {}
        for name, index in tasks:
            seen.setdefault(name, set()).update(() if index is None else (index,))
        found = {name: self._known.get(name) or self._load(name) for name in seen}
        self._known = {
            name: replace(array, begun=array.begun | seen[name])
            for name, array in found.items()
            if array is not None
        }
        self._warn(seen.keys() - self._known.keys())
        return self._known

    def _warn(self, unknown: set[str]) -> None:
        for name in unknown - self._unknown:
            _log.warning("job array %s is in our name and unknown: see %s", name, self._path(name))
        self._unknown = unknown

    def _path(self, name: str) -> Path:
        return self._fragments_dir / name / ARRAY_NAME

    def _load(self, name: str) -> Array | None:
        path = self._path(name)
        try:
            return Array(FragmentArray.model_validate_json(path.read_bytes()).fragments)
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None
        except OSError as error:
            raise SchedulerError(f"{path} cannot be read: {error.strerror}") from error
