"""Durable checkpoints: folders that are complete and verified, or are not there.

    step-1200/              manifest.json  state.json  .metadata  __0_0.distcp
    step-1300.tmp-<uuid>/   being written; left behind only by a writer that died
    best.json               which checkpoint is the best, where the spec names a metric

Torch's distributed checkpoint (DCP) stores the tensors under their names and can reshard them; `state.json` says
how they form the state. A folder gets its final name by one rename, after its files are on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from oakum_worker.checkpoint import manifest
from oakum_worker.checkpoint.best import read_best, write_best
from oakum_worker.checkpoint.document import read_document, write_document
from oakum_worker.checkpoint.folder_names import folder_name, is_unfinished, step_of, unfinished
from oakum_worker.checkpoint.manifest import FileRecord
from oakum_worker.errors import CheckpointError, CorruptCheckpointError
from oakum_worker.protocol import BestEvaluation
from oakum_worker.state.finiteness import first_not_finite
from oakum_worker.state.tree import assemble, dismantle, empty_tensors

# One rank writes for all, so DCP must not use the process group; its warning about that is no news.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, which was complete and unchanged when it was last verified."""

    path: Path
    step: int


class DurableCheckpoints:
    """A trainer's checkpoints in a folder, of which the newest `keep` and the best one stay. Only one process may
    write to the folder at a time."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        self.finite: frozenset[str] = frozenset()
        """Paths of tensors that have to be finite: a checkpoint with infinite or NaN weights would displace a
        good one."""
        self._writer: threading.Thread | None = None
        self._turn = threading.Lock()
        """Held by the thread that writes, because each writer removes folders that look abandoned."""
        self._failure: CheckpointError | None = None
        self._unusable: set[Path] = set()
        self.skipped: list[str] = []
        """One sentence for each checkpoint that the last call of `newest` found unusable and skipped."""
        self.best: BestEvaluation | None = None
        """The evaluation that makes the checkpoint of its step the best, as soon as that is durable; set before it
        is written."""
        self.newest_step: int | None = None
        """Step of the newest checkpoint saved or found here."""

    def save(self, state: Any, step: int) -> Path:
        """Write the state as the checkpoint of `step`, then remove old checkpoints beyond the number to keep.
        Returns the checkpoint's folder. A whole checkpoint of this step that exists already is left as it is.

        Raises `CheckpointError` when the state has weights that are not finite or the disk cannot be written to;
        no partial checkpoint is left behind.
        """
        return self._write(*dismantle(state), step)

    def save_in_background(self, state: Any, step: int) -> bool:
        """Copy the state, and write it in a thread as the checkpoint of `step`; returns True. Returns False and
        does nothing while another checkpoint is being written.

        If the previous checkpoint could not be written, raises its `CheckpointError`, after starting this one.
        """
        if self._writer is not None and self._writer.is_alive():
            return False
        failure, self._failure = self._failure, None
        document, tensors = dismantle(state)
        copies = {path: tensor.to("cpu", copy=True) for path, tensor in tensors.items()}
        writer = threading.Thread(
            target=self._write_in_background, args=(document, copies, step), name="checkpoint", daemon=True
        )
        writer.start()
        self._writer = writer  # started: others may wait for it
        if failure is not None:
            raise failure
        return True

    def wait(self) -> None:
        """Wait until no checkpoint is being written in the background."""
        if self._writer is not None:
            self._writer.join()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, verified by reading all of its bytes; None if there is none.
        Afterwards `skipped` has a message for each newer checkpoint that is unusable."""
        self.skipped = []
        for checkpoint in self.candidates():
            fault = fault_of(checkpoint)
            self.judge(checkpoint, fault)
            if fault is None:
                return checkpoint
        return None

    def note_beginning(self) -> None:
        """Create the folder, and set its modification time to now: `age_s` counts from it while there is no
        checkpoint. Errors of the file system are ignored."""
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            os.utime(self._directory)

    def age_s(self) -> float:
        """Seconds since the newest checkpoint was written, whether it is whole or not; without any checkpoint,
        since `note_beginning`. 0 where that cannot be read."""
        with contextlib.suppress(OSError):
            newest = next(iter(self.candidates()), None)
            place = self._directory if newest is None else manifest.manifest_path(newest.path)
            return max(0.0, time.time() - place.stat().st_mtime)
        return 0.0

    def candidates(self) -> list[Checkpoint]:
        """All folders that are named as checkpoints are, newest first; their content is not verified. Raises
        `CheckpointError` where the folder of checkpoints cannot be read."""
        try:
            paths = list(self._directory.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"{self._directory} cannot be read: {error.strerror}; make it readable"
            ) from error
        checkpoints = [self.named(path.name) for path in paths if step_of(path.name) is not None]
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)

    def named(self, name: str) -> Checkpoint:
        """The checkpoint whose folder has the name `name`, such as `step-1200`. Whether the folder exists is not
        checked."""
        step = step_of(name)
        assert step is not None
        return Checkpoint(self._directory / name, step)

    def judge(self, checkpoint: Checkpoint, fault: str | None) -> None:
        """Remember the result of a verification. `fault` says what is wrong with the checkpoint, and is added to
        `skipped`; None means that the checkpoint is whole, which makes it `newest_step`."""
        if fault is not None:
            self._unusable.add(checkpoint.path)
            self.skipped.append(f"checkpoint of step {checkpoint.step} is not usable: {fault}")
            return
        self._unusable.discard(checkpoint.path)
        self.newest_step = checkpoint.step

    def temporary(self, step: int, token: str) -> Path:
        """The folder in which the checkpoint of `step` is written before its rename; `token` has 32 hexadecimal
        digits."""
        return unfinished(self._final(step), token)

    def check(self, tensors: Mapping[str, torch.Tensor], step: int) -> None:
        """Raise `CheckpointError` where a tensor whose path is in `finite` holds an infinite value or NaN; `step`
        is for the message."""
        name = first_not_finite((path, tensor) for path, tensor in tensors.items() if path in self.finite)
        if name is not None:
            raise CheckpointError(
                f"no checkpoint of step {step} is written: the weights of {name.removeprefix('model.')} are not "
                "finite. Older checkpoints are untouched"
            )

    def clear_up(self, keep: Path) -> None:
        """Remove all folders that dead writers left unfinished, except `keep`. No other process may be writing."""
        for path in self._directory.iterdir():
            if is_unfinished(path.name) and path != keep:
                shutil.rmtree(path, ignore_errors=True)

    def publish(
        self, temporary: Path, step: int, records: Mapping[str, FileRecord] = MappingProxyType({})
    ) -> Path:
        """Make the folder `temporary`, which has all files of a checkpoint, the checkpoint of `step`, then remove
        old checkpoints beyond the number to keep. Returns the checkpoint's folder. Files with a record in
        `records` are not read again for their checksums.

        Raises `CheckpointError` and removes `temporary` when this fails.
        """
        with self._turn, self._writing(temporary):
            self._rename(temporary, step, records)
        return self._conclude(step)

    def prepare(self) -> None:
        """Import the modules that writing and reading need, so that the last checkpoint of a leaving rank does not
        wait for imports."""
        from oakum_worker.checkpoint import dcp_files  # noqa: F401

    def load(self, checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        """Replace the content of `state` by the checkpoint's, with new tensors on the CPU.

        Raises `CheckpointError` when the checkpoint cannot be read, and then leaves `state` unchanged.
        """
        from oakum_worker.checkpoint import dcp_files  # late: see there

        try:
            with being_read(checkpoint.path):
                document = read_document(checkpoint.path)
                tensors: dict[str, Any] = dict(empty_tensors(document))
                dcp_files.read_tensors(checkpoint.path, tensors)
        except Exception as error:
            raise CheckpointError(
                f"{checkpoint.path} cannot be read: {reason(error)}; look for the newest checkpoint again"
            ) from error
        loaded = assemble(document, tensors)
        state.clear()
        state.update(loaded)

    def _write_in_background(self, document: Any, tensors: dict[str, torch.Tensor], step: int) -> None:
        try:
            self._write(document, tensors, step)
        except CheckpointError as error:
            self._failure = error

    def _write(self, document: Any, tensors: dict[str, torch.Tensor], step: int) -> Path:
        self.check(tensors, step)
        temporary = self.temporary(step, uuid.uuid4().hex)
        with self._turn:
            with self._writing(temporary):
                self._directory.mkdir(parents=True, exist_ok=True)
                self.clear_up(keep=temporary)
                if not _is_whole(self._final(step)):
                    _write_files(temporary, document, tensors)
                    self._rename(temporary, step, {})
            return self._conclude(step)

    def _final(self, step: int) -> Path:
        return self._directory / folder_name(step)

    @contextlib.contextmanager
    def _writing(self, temporary: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"checkpoints cannot be written to {self._directory}: {reason(error)}; "
                "free space there or make it writable. Older checkpoints are untouched"
            ) from error

    def _rename(self, temporary: Path, step: int, records: Mapping[str, FileRecord]) -> None:
        manifest.seal(temporary, step, records)
        if self._final(step).exists():
            _discard(self._final(step))
        temporary.rename(self._final(step))
        manifest.sync(self._directory)

    def _conclude(self, step: int) -> Path:
        final = self._final(step)
        self._unusable.discard(final)
        self.newest_step = step
        if self.best is not None and self.best.step == step:
            # Where this fails the best one before it stays the best; the new one may be removed later.
            with contextlib.suppress(OSError):
                write_best(self._directory, self.best)
        self._retire(final)
        return final

    def _retire(self, just_written: Path) -> None:
        """Remove unusable checkpoints, and all usable ones beyond the number to keep, except those being read.
        `just_written` and the best one always stay.

        A checkpoint of a later step than `just_written` is from before training went back to an earlier step.
        """
        best = read_best(self._directory)
        kept = {just_written, *(() if best is None else (self._final(best.step),))}
        others = [checkpoint.path for checkpoint in self.candidates() if checkpoint.path not in kept]
        usable = [path for path in others if path not in self._unusable]
        for path in others:
            if path not in usable[: self._keep - 1] and not _is_being_read(path):
                # The new checkpoint is durable already; what cannot be removed now is tried again after the next.
                with contextlib.suppress(OSError):
                    _discard(path)


def fault_of(checkpoint: Checkpoint, share: int = 0, num_shares: int = 1) -> str | None:
    """What is wrong with a checkpoint, or None.

    Reads all of its files, or every `num_shares`-th from `share` on.
    """
    try:
        with being_read(checkpoint.path):
            manifest.verify(checkpoint.path, share, num_shares)
    except (OSError, CorruptCheckpointError) as error:
        return str(error)
    return None


def _write_files(folder: Path, document: Any, tensors: dict[str, torch.Tensor]) -> None:
    from oakum_worker.checkpoint import dcp_files  # late: see there

    dcp_files.write_tensors(folder, tensors)
    write_document(folder, document)


def _is_whole(folder: Path) -> bool:
    try:
        manifest.verify(folder)
    except (OSError, CorruptCheckpointError):
        return False
    return True


def _discard(folder: Path) -> None:
    """Remove a checkpoint.

    Its folder is renamed first, so that a half-removed one is not taken for a checkpoint.
    """
    doomed = unfinished(folder, uuid.uuid4().hex)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def being_read(folder: Path) -> Iterator[None]:
    """Context that locks the checkpoint's folder, so that no process removes it; without effect on a file system
    that has no locks. Raises `CorruptCheckpointError` where the folder has no manifest."""
    try:
        file = manifest.manifest_path(folder).open("rb")
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{manifest.manifest_path(folder)} is missing") from error
    with file:
        # Some shared file systems are mounted without locks. A reader may then find files gone, and says so.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _is_being_read(folder: Path) -> bool:
    try:
        with manifest.manifest_path(folder).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def reason(error: BaseException) -> str:
    """A message of one line for the error: the system's text for an `OSError`, else its type and first line."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return f"{type(error).__name__}: {error}".splitlines()[0]
