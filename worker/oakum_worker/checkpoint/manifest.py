"""A checkpoint folder's manifest: which files make it complete, and their checksums.

It is written last into a folder that gets its final name only after it, so a folder without a manifest, or one
whose files differ from it, is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oakum_worker.errors import CorruptCheckpointError, fault_of

FORMAT = 1
"""The form of a checkpoint that this version writes. It reads those of all earlier versions, too."""
_NAME = "manifest.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class FileRecord(_Record):
    """A file's length and checksum."""

    size_bytes: int
    sha256: str


class Manifest(_Record):
    """A checkpoint's step, its files with their checksums, and when it was written."""

    format: Annotated[int, Field(ge=1)]
    step: int
    written_s: float
    """Unix time."""
    files: dict[str, FileRecord]
    adopted_from: str = ""
    """Id of the trainer that wrote the checkpoint, where another one begins from it."""


def seal(folder: Path, step: int, records: Mapping[str, FileRecord] = MappingProxyType({})) -> None:
    """Write the manifest of all files in `folder` and flush files and folder to the disk (fsync). Files with a
    record in `records` are not read for their checksums."""
    files = {path.name: records.get(path.name) or record_of(path) for path in sorted(folder.iterdir())}
    manifest = Manifest(format=FORMAT, step=step, written_s=time.time(), files=files)
    write(folder, manifest)
    for path in folder.iterdir():
        sync(path)


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into the folder, and flush both to the disk (fsync)."""
    (folder / _NAME).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    for path in (folder / _NAME, folder):
        sync(path)


def verify(folder: Path, share: int = 0, num_shares: int = 1) -> Manifest:
    """Check that each file of the folder is as it was when the manifest was written; returns the manifest.

    Reads every `num_shares`-th file only, from number `share` on, so that several ranks can share the work. Raises
    `CorruptCheckpointError`, which names the file that is missing or differs, and `OSError` when a file cannot be
    read.
    """
    manifest = read(folder)
    for name, expected in list(manifest.files.items())[share::num_shares]:
        path = folder / name
        if not path.is_file():
            raise CorruptCheckpointError(f"{path} is missing")
        size_bytes = path.stat().st_size
        if size_bytes != expected.size_bytes:
            raise CorruptCheckpointError(f"{path} has {size_bytes} bytes instead of {expected.size_bytes}")
        if record_of(path) != expected:
            raise CorruptCheckpointError(f"{path} does not have the content it was written with")
    return manifest


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def manifest_path(folder: Path) -> Path:
    """Path of the manifest of a checkpoint's folder; the file need not exist."""
    return folder / _NAME


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint's folder. Raises `CorruptCheckpointError` where it is missing, damaged or of
    a later format, and `OSError` where it cannot be read."""
    path = manifest_path(folder)
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{path} is missing") from error
    except ValidationError as error:
        raise CorruptCheckpointError(f"{path} is not a manifest: {fault_of(error.errors()[0])}") from error
    if manifest.format > FORMAT:
        raise CorruptCheckpointError(
            f"{path} has format {manifest.format}; this worker reads formats up to {FORMAT}: install the version "
            "of Oakum that wrote it"
        )
    return manifest


def record_of(path: Path) -> FileRecord:
    """The file's length and checksum as it is now. Reads all of it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(size_bytes=file.tell(), sha256=digest)
