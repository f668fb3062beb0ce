"""Gives a new trainer another trainer's checkpoints, from whose state it begins. Imports no torch."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from oakum_worker.checkpoint import manifest
from oakum_worker.checkpoint.folder_names import folders_by_step, unfinished
from oakum_worker.errors import CheckpointError, CorruptCheckpointError, reason_of


def adopt(source: Path, target: Path, trainer_id: str, step: int | None = None) -> int:
    """Copy the checkpoints in `source`, written by the trainer with the id `trainer_id`, into `target`, marked as
    adopted from it; with `step` only the checkpoint of that step. Returns the step of the newest one copied.

    Files are shared by hard links where the file system has these, else copied, so either folder can be removed
    without harm to the other. Raises `CheckpointError` where `source` has no such checkpoint, or where a
    checkpoint cannot be read or `target` cannot be written to; `target` is then removed.
    """
    folders = folders_by_step(source) if source.is_dir() else {}
    if not folders:
        raise CheckpointError(f"there is no durable checkpoint in {source}")
    if step is not None and step not in folders:
        there = ", ".join(map(str, sorted(folders)))
        raise CheckpointError(f"there is no checkpoint after step {step} in {source}; there are: {there}")
    folders = folders if step is None else {step: folders[step]}
    try:
        for path in folders.values():
            _adopt_one(path, target / path.name, trainer_id)
    except (OSError, CorruptCheckpointError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoints in {source} cannot be put into {target}: {reason_of(error)}"
        ) from error
    return max(folders)


def is_adopted(folder: Path) -> bool:
    """Whether the checkpoint in `folder` was adopted from another trainer; False where it cannot be read."""
    try:
        return bool(manifest.read(folder).adopted_from)
    except (OSError, CorruptCheckpointError):
        return False


def _adopt_one(checkpoint: Path, final: Path, trainer_id: str) -> None:
    record = manifest.read(checkpoint)
    temporary = unfinished(final, uuid.uuid4().hex)
    temporary.mkdir(parents=True)
    for name in record.files:
        _share(checkpoint / name, temporary / name)
    manifest.write(temporary, record.model_copy(update={"adopted_from": record.adopted_from or trainer_id}))
    temporary.rename(final)
    manifest.sync(final.parent)


def _share(file: Path, link: Path) -> None:
    try:
        os.link(file, link)
    except OSError:  # A file system without hard links, or with a limit to them.
        shutil.copyfile(file, link)
        manifest.sync(link)
