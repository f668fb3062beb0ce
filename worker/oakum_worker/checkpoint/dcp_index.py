"""Reads the index of a checkpoint in torch's format (DCP), a pickle, without running what else may be in it.

Whoever reads a checkpoint may be another than whose code wrote it: an administrator who exports a user's model.
"""

from __future__ import annotations

import io
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from oakum_worker.errors import CorruptCheckpointError

_INDEX = ".metadata"
_CLASSES = "torch.distributed.checkpoint.metadata"
_OTHERS = frozenset(
    {
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # of Python 3.13
    }
)


class IndexedReader(dcp.FileSystemReader):
    """torch's reader of a folder, which takes from the index what an index has, and reads no file elsewhere."""

    def __init__(self, folder: Path) -> None:
        """Raises `CorruptCheckpointError` where something else is in the index, and `OSError`."""
        super().__init__(folder)
        # Here: of errors while it loads, torch makes others.
        self._index = _read(folder / _INDEX)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index."""
        if self._index.storage_meta is None:
            self._index.storage_meta = StorageMeta()
        self._index.storage_meta.load_id = self.load_id
        return self._index


def _read(file: Path) -> Metadata:
    index = _Index(io.BytesIO(file.read_bytes())).load()
    if not isinstance(index, Metadata):
        raise CorruptCheckpointError(f"the index is a {type(index).__name__}")
    for info in (index.storage_data or {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise CorruptCheckpointError(f"the index names {info.relative_path!r}, a file elsewhere")
    return index


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The class or type of that name, if it belongs into an index."""
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module == _CLASSES or (module, name) in _OTHERS or (module == "torch" and _is_type(name)):
            member = super().find_class(module, name)
            if module != _CLASSES or getattr(member, "__module__", "") == _CLASSES:
                return member
        raise CorruptCheckpointError(f"the index has {module}.{name} in it, which is no part of one")


def _member(enum: Any, name: str) -> Any:
    """The member of an enumeration, which some versions of Python pickle as its attribute."""
    if isinstance(enum, type) and issubclass(enum, Enum) and name in enum.__members__:
        return enum[name]
    raise CorruptCheckpointError(f"the index has an attribute {name!r} in it, which is no part of one")


def _is_type(name: str) -> bool:
    return isinstance(getattr(torch, name, None), torch.dtype)
