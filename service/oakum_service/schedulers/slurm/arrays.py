"""Which fragment each task of our job arrays runs, read from the file that was written before the array's
submission.

A job shows only its array's name and its own index. The file also survives a crash between `sbatch` and its
answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from oakum_service.errors import SchedulerError
from oakum_worker.fragment.config_files import ARRAY_NAME, FragmentArray

_log = logging.getLogger("oakum.slurm")


@dataclass(frozen=True)
class JobArray:
    """One job array of ours, with the fragments that its tasks run."""

    fragments: tuple[str, ...]
    """Fragment ids by task index."""
    begun: frozenset[int] = frozenset()
    """Indices of tasks that have had a record of their own. The shared record of the waiting tasks no longer
    stands for them."""


class JobArrays:
    """Looks up which fragments the job arrays run that Slurm shows at present. For use in one thread only."""

    def __init__(self, fragments_dir: Path) -> None:
        self._fragments_dir = fragments_dir
        self._known: dict[str, JobArray] = {}
        self._unknown: set[str] = set()

    def look_up(self, tasks: Iterable[tuple[str, int | None]]) -> Mapping[str, JobArray]:
        """The arrays of these tasks by name; a task is (name of its array, its index), with None as index for the
        record of the waiting tasks.

        Arrays not among them are forgotten. An array whose file is missing or invalid is left out. Raises
        `SchedulerError` for a file that cannot be read now: its fragments must not be taken for orphans.
        """
        seen: dict[str, set[int]] = {}
        for name, index in tasks:
            seen.setdefault(name, set()).update(() if index is None else (index,))
        arrays = {name: self._known.get(name) or self._load(name) for name in seen}
        self._known = {
            name: replace(array, begun=array.begun | seen[name])
            for name, array in arrays.items()
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

    def _load(self, name: str) -> JobArray | None:
        path = self._path(name)
        try:
            return JobArray(FragmentArray.model_validate_json(path.read_bytes()).fragments)
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None
        except OSError as error:
            raise SchedulerError(f"{path} cannot be read: {error.strerror}") from error
