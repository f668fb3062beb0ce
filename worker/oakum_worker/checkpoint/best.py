"""The record of which durable checkpoint is the best by a metric: a file beside the checkpoints. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from oakum_worker.checkpoint import manifest
from oakum_worker.protocol import BestEvaluation

_NAME = "best.json"


def read_best(directory: Path) -> BestEvaluation | None:
    """The evaluation whose checkpoint is kept as the best of the trainer's checkpoints in `directory`; None where
    there is none, or where its record cannot be read."""
    try:
        return BestEvaluation.model_validate_json((directory / _NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def write_best(directory: Path, best: BestEvaluation) -> None:
    """Record that the checkpoint of `best.step`, which is durable, is the best. Raises `OSError`."""
    part = directory / f".{_NAME}.{os.getpid()}.part"
    part.write_text(best.model_dump_json(), encoding="utf-8")
    manifest.sync(part)
    part.replace(directory / _NAME)
    manifest.sync(directory)
