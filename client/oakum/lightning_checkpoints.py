"""Checkpoints of Lightning's own, such as those of a `ModelCheckpoint`, on ranks that come and go.

Each rank does alike what its callbacks ask for, and notes it in a part of the session's state; the first rank
writes and removes the files. Where it is lost before it has, the rank that is first when the next step is tried
does so: the weights are the same until that step is taken.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from oakum_worker.errors import SessionError, TrainingWarning

if TYPE_CHECKING:
    from oakum.lightning_trainer import Trainer

__all__ = ["Files", "refuse_clock", "write_at_once"]

PATIENCE_S = 60.0
"""How long a rank waits after training for files that the first rank writes."""
_OF_CALLBACKS = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""What a `ModelCheckpoint` remembers beside its own state."""


class Files:
    """The library's checkpoints, as a part of the session's state."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._existing_files: set[str] = set()
        """Files that are there, to callbacks that choose a name; equal on all ranks."""
        self._step = 0
        """The step after which the files of the next two were written and removed."""
        self._due: dict[str, bool | None] = {}
        """File -> whether it has the weights alone."""
        self._removed: list[str] = []
        self._written: dict[str, int] = {}
        """File -> after which step this rank has written it last."""

    def begin(self) -> None:
        """Have the callbacks choose names by what all ranks know. Raises `SessionError` for one that saves by the
        clock."""
        for callback in self._callbacks():
            refuse_clock(callback)
            folder = Path(callback.dirpath or "")
            self._existing_files |= {str(path) for path in folder.glob(f"*{callback.FILE_EXTENSION}")}
            callback.file_exists = lambda filepath, trainer: str(filepath) in self._existing_files

    def save(self, path: str, weights_only: bool | None) -> None:
        """Write a checkpoint, on the first rank."""
        self._turn_to_step()
        self._existing_files.add(path)
        self._due[path] = weights_only
        if self._trainer.is_global_zero:
            self._write(path)

    def remove(self, path: str) -> None:
        """Remove a checkpoint, on the first rank."""
        self._turn_to_step()
        self._existing_files.discard(path)
        self._due.pop(path, None)
        self._removed.append(path)
        if self._trainer.is_global_zero:
            self._trainer.strategy.checkpoint_io.remove_checkpoint(path)

    def catch_up(self) -> None:
        """Before the next step is computed: write and remove what a first rank that is lost may not have."""
        if self._step != self._steps or not self._trainer.is_global_zero:
            return
        for path in list(self._due):
            if self._written.get(path) != self._step:
                self._write(path)
        for path in self._removed:
            if path not in self._existing_files:
                self._trainer.strategy.checkpoint_io.remove_checkpoint(path)
        self._removed.clear()

    def wait(self) -> None:
        """After training, wait until the files that the callbacks name are there, as the script may read them.
        Warns where the first rank has not written them, or this rank does not see them."""
        self.catch_up()
        if self._trainer.is_global_zero:
            return
        until_s = time.monotonic() + PATIENCE_S
        while (missing := [path for path in self._named() if not self._is_there(path)]) and (
            time.monotonic() < until_s
        ):
            time.sleep(0.05)
        for path in missing:
            if not self._is_of_the_end(path):
                warnings.warn(
                    f"ModelCheckpoint names {path}, and it is not there {PATIENCE_S:.0f} s after training, so "
                    "it cannot be read here: the first rank writes it; give dirpath a folder that all nodes "
                    "share, or leave the callback out and have the weights by `oakum export`",
                    TrainingWarning,
                    stacklevel=2,
                )
                return
            self._write(path)

    def state_dict(self) -> dict[str, Any]:
        """What all ranks know."""
        return {
            "known": sorted(self._existing_files),
            "step": self._step,
            "due": [[path, weights_only] for path, weights_only in self._due.items()],
            "removed": list(self._removed),
            "callbacks": {
                one.state_key: {name: getattr(one, name) for name in _OF_CALLBACKS} for one in self._callbacks()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over a state of `state_dict`."""
        self._existing_files = set(state["known"])
        self._step = state["step"]
        self._due = dict(state["due"])
        self._removed = list(state["removed"])
        for callback in self._callbacks():
            for name, value in state["callbacks"].get(callback.state_key, {}).items():
                setattr(callback, name, value)

    @property
    def _steps(self) -> int:
        loop = self._trainer._loop
        return loop.open.steps if loop.has_begun else 0

    def _turn_to_step(self) -> None:
        if self._step != self._steps:
            self._step = self._steps
            self._due.clear()
            self._removed.clear()

    def _write(self, path: str) -> None:
        pl.Trainer.save_checkpoint(self._trainer, path, self._due[path])
        self._written[path] = self._step

    def _callbacks(self) -> list[ModelCheckpoint]:
        return [one for one in self._trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]

    def _named(self) -> Iterator[str]:
        for one in self._callbacks():
            yield from filter(None, {one.best_model_path, one.last_model_path, *one.best_k_models})

    def _is_of_the_end(self, path: str) -> bool:
        return path in self._due and self._step == self._steps

    def _is_there(self, path: str) -> bool:
        """Whether a file is there, and no older one of the same name."""
        if "://" in path:
            return True
        if not Path(path).exists():
            return False
        if not self._is_of_the_end(path) or type(self._trainer.strategy.checkpoint_io) is not TorchCheckpointIO:
            return True
        checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
        return bool(checkpoint["global_step"] == self._trainer.global_step)


def refuse_clock(callback: ModelCheckpoint) -> None:
    """Raise `SessionError` for a callback that saves by the clock."""
    if callback._train_time_interval is not None:
        raise SessionError(
            "ModelCheckpoint(train_time_interval=...) cannot be kept when nodes come and go: ranks have clocks of "
            "their own; give every_n_train_steps or every_n_epochs"
        )


def write_at_once(io: Any, checkpoint: dict[str, Any], path: str, storage_options: Any) -> None:
    """Write a file that others see whole or not at all, where the library's own way of writing is in use."""
    if "://" in path or type(io) is not TorchCheckpointIO:
        io.save_checkpoint(checkpoint, path, storage_options=storage_options)
        return
    part = f"{path}.{uuid.uuid4().hex}.part"
    try:
        io.save_checkpoint(checkpoint, part, storage_options=storage_options)
        Path(part).replace(path)
    finally:
        Path(part).unlink(missing_ok=True)
