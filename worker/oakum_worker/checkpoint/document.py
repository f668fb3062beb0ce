"""A checkpoint's document: the file `state.json`, which says how the checkpoint's tensors form the state. All that
is written to it and read from it goes through this module. Imports no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_NAME = "state.json"


def document_path(folder: Path) -> Path:
    """Path of the document in a checkpoint's folder; the file need not exist."""
    return folder / _NAME


def write_document(folder: Path, document: Any) -> None:
    """Write the document of a state (`state.tree`) into the checkpoint's folder. Raises `OSError`."""
    document_path(folder).write_text(json.dumps(document), encoding="utf-8")


def read_document(folder: Path) -> Any:
    """The document in a checkpoint's folder, in the form that this version writes. Raises `OSError` where the file
    cannot be read, and `ValueError` where it is no JSON."""
    return json.loads(document_path(folder).read_text(encoding="utf-8"))
