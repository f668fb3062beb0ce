"""Writes a checkpoint as a folder that `from_pretrained` of Hugging Face loads: configuration and weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from oakum_worker.checkpoint.document import read_document
from oakum_worker.checkpoint.durable import Checkpoint, being_read, reason
from oakum_worker.checkpoint.export import SUFFIXES, Exported, Progress, export_weights
from oakum_worker.checkpoint.weights import find_checkpoint
from oakum_worker.errors import CheckpointError

FILES_PART = "task.state.hugging_face"
"""The part of a state in which `oakum.hugging_face.Trainer` keeps the model's files."""
FILES = "files"
"""The files in this part: JSON, name -> text."""


def export_model_folder(
    folder: Path, output: Path, tell: Progress = lambda done, total: None, *, is_exact: bool = True
) -> Exported:
    """Write the newest whole checkpoint of `folder`, or the checkpoint that `folder` is, to the new folder
    `output`: `model.safetensors` and the model's configuration. Returns what was written.

    `output` appears when it is complete, and replaces a folder of this name. Raises `CheckpointError` where the
    checkpoint has no configuration, because another trainer than that of Hugging Face wrote it, and where
    something cannot be read or written.
    """
    checkpoint = find_checkpoint(folder)
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        files = _files(checkpoint)
        part.mkdir()
        done = export_weights(checkpoint.path, part / "model.safetensors", tell, is_exact=is_exact)
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8")
        if output.is_dir():
            shutil.rmtree(output)
        part.replace(output)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path} cannot be exported to {output}: {reason(error)}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return replace(done, file=output)


def _files(checkpoint: Checkpoint) -> dict[str, str]:
    with being_read(checkpoint.path):
        document = read_document(checkpoint.path)
    part = document.get("parts", {}).get(FILES_PART, {})
    files = json.loads(part[FILES]) if isinstance(part, Mapping) and FILES in part else {}
    if not files:
        raise CheckpointError(
            f"{checkpoint.path} has no configuration of Hugging Face, which oakum.hugging_face.Trainer saves: "
            f"give a file's name that ends in {', '.join(SUFFIXES)}"
        )
    # The names are a trainer's: none may lead out of the folder.
    return {Path(name).name: text for name, text in files.items()}
