"""Names of checkpoints' folders in a trainer's folder: `step-1200`. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

_FINAL = re.compile(r"step-([0-9]+)")
_UNFINISHED = re.compile(r"step-[0-9]+\.tmp-[0-9a-f]{32}")


def folder_name(step: int) -> str:
    """Name of the folder of the checkpoint after `step` steps."""
    return f"step-{step}"


def unfinished(final: Path, token: str) -> Path:
    """The folder beside the checkpoint's folder `final` in which it is written before its rename, or removed after
    one; `token` has 32 hexadecimal digits."""
    return final.with_name(f"{final.name}.tmp-{token}")


def step_of(name: str) -> int | None:
    """The step of the checkpoint whose folder has this name; None if no checkpoint's folder is named so."""
    match = _FINAL.fullmatch(name)
    return None if match is None else int(match[1])


def is_unfinished(name: str) -> bool:
    """Whether the name is one that `unfinished` gives."""
    return _UNFINISHED.fullmatch(name) is not None


def folders_by_step(directory: Path) -> dict[int, Path]:
    """Step -> folder, of everything in a trainer's folder that is named as a checkpoint; what is in them is not
    looked at. Raises `OSError`."""
    return {step: path for path in directory.iterdir() if (step := step_of(path.name)) is not None}
