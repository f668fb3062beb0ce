"""Reads the last lines that a fragment's processes wrote."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from pydantic import ValidationError

from oakum_service.logs.plain_text import plain
from oakum_worker.fragment.config_files import ARRAY_NAME, FragmentArray

_MOST_BYTES = 256 * 1024
_LARGEST_ARRAY_BYTES = 16 << 20
_ARRAY_LOG = re.compile(r"\d+_(\d{1,9})_0_log\.out")
"""Name of the log of an array's task: the array's job id, the task's index."""


def last_lines(fragments_dir: Path, fragment: str, count: int) -> list[str]:
    """The last lines of each log in the fragment's folder, in order of the logs' names.

    The user's code may write there, so only regular files of a single name are read. No link is followed but that
    from a fragment's folder to its log in the folder of its job array.
    """
    try:
        within = _open_folder(fragments_dir / fragment)
    except OSError:
        return []  # the folder was deleted meanwhile, or is none
    try:
        names = sorted(entry.name for entry in os.scandir(within) if entry.name.endswith("_log.out"))
        return [
            line
            for name in names
            for line in _lines_of(name, within, count)
            or _last_lines_in_array(name, fragments_dir, fragment, count)
        ]
    finally:
        os.close(within)


def _last_lines_in_array(name: str, fragments_dir: Path, fragment: str, count: int) -> list[str]:
    """The last lines of the log `name` if it is a link to the folder of a job array whose list has the fragment as
    this log's task; otherwise none."""
    try:
        up, folder, target = (fragments_dir / fragment / name).readlink().parts
    except (OSError, ValueError):
        return []  # no link, or none of ours
    task = _ARRAY_LOG.fullmatch(name)
    if up != ".." or folder == ".." or target != name or task is None:
        return []
    try:
        within = _open_folder(fragments_dir / folder)
    except OSError:
        return []
    try:
        fragments = FragmentArray.model_validate_json(_end_of(ARRAY_NAME, within, _LARGEST_ARRAY_BYTES)).fragments
        is_own = fragments[int(task[1])] == fragment
        return _lines_of(name, within, count) if is_own else []
    except (ValidationError, IndexError):
        return []
    finally:
        os.close(within)


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _lines_of(name: str, within: int, count: int) -> list[str]:
    lines = _end_of(name, within, _MOST_BYTES).splitlines()[-count:]
    return [plain(line) for line in lines]


def _end_of(name: str, within: int, most_bytes: int) -> str:
    """The end of a regular file with a single name in the open folder `within`; empty where there is none."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    except OSError:
        return ""  # the file was deleted meanwhile, or is a link
    with os.fdopen(opened, "rb") as stream:
        state = os.fstat(opened)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            return ""
        stream.seek(max(0, state.st_size - most_bytes))
        return stream.read(most_bytes).decode("utf-8", errors="replace")
