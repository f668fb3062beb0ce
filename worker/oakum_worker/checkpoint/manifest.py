"""A checkpoint folder's manifest: which files make it complete, and their checksums.

It is written last into a folder that gets its final name only after it, so a folder without a manifest, or one
whose files differ from it, is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from oakum_worker.errors import CorruptCheckpointError

FORMAT = 1
_NAME = "manifest.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class FileRecord(_Record):
    """A file's length and checksum."""

    size_bytes: int
    sha256: str


class Manifest(_Record):
    """What a complete checkpoint consists of."""

    format: int
    step: int
    written_s: float
    """Unix time."""
    files: dict[str, FileRecord]


def seal(folder: Path, step: int) -> None:
    """Write the manifest of everything in `folder`, and bring files and folder to the disk."""
    files = {path.name: _record_of(path) for path in sorted(folder.iterdir())}
    manifest = Manifest(format=FORMAT, step=step, written_s=time.time(), files=files)
    (folder / _NAME).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        sync(path)


def verify(folder: Path) -> Manifest:
    """The manifest of a folder whose every file is as it was written.

    Raises `CorruptCheckpointError` that says which file is not, and `OSError` when it cannot be read.
    """
    manifest = _read(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise CorruptCheckpointError(f"{path} is missing")
        size_bytes = path.stat().st_size
        if size_bytes != expected.size_bytes:
            raise CorruptCheckpointError(f"{path} has {size_bytes} bytes instead of {expected.size_bytes}")
        if _record_of(path) != expected:
            raise CorruptCheckpointError(f"{path} does not have the content it was written with")
    return manifest


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def manifest_path(folder: Path) -> Path:
    """Where the folder's manifest is."""
    return folder / _NAME


def _read(folder: Path) -> Manifest:
    path = manifest_path(folder)
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{path} is missing") from error
    except ValidationError as error:
        raise CorruptCheckpointError(f"{path} is not a manifest: {error.errors()[0]['msg']}") from error
    if manifest.format != FORMAT:
        raise CorruptCheckpointError(f"{path} has format {manifest.format}; this worker reads format {FORMAT}")
    return manifest


def _record_of(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(size_bytes=file.tell(), sha256=digest)
