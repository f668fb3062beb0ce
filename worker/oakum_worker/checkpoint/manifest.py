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


def seal(folder: Path, step: int, known: Mapping[str, FileRecord] = MappingProxyType({})) -> None:
    """Write the manifest of everything in `folder`, and bring files and folder to the disk.

    Files with a `known` record are not read again.
    """
    files = {path.name: known.get(path.name) or record_of(path) for path in sorted(folder.iterdir())}
    manifest = Manifest(format=FORMAT, step=step, written_s=time.time(), files=files)
    (folder / _NAME).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        sync(path)


def verify(folder: Path, share: int = 0, num_shares: int = 1) -> Manifest:
    """The manifest of a folder whose every file is as it was written.

    With shares, only every `num_shares`-th file is looked at, beginning with number `share`: others look at the
    rest. Raises `CorruptCheckpointError` that says which file is not, and `OSError` when it cannot be read.
    """
    manifest = _read(folder)
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


def record_of(path: Path) -> FileRecord:
    """The file's length and checksum as it is now. Reads all of it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(size_bytes=file.tell(), sha256=digest)
