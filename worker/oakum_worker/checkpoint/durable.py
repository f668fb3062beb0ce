"""Durable checkpoints: folders that are complete and verified, or are not there.

    step-1200/              manifest.json  state.json  .metadata  __0_0.distcp
    step-1300.tmp-<uuid>/   being written; left behind only by a writer that died

Tensors are stored by torch's distributed checkpoint (DCP) under their names, from which it can reshard them;
how they go together is in `state.json`. A folder gets its final name by one rename, after its files are on the
disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from oakum_worker.checkpoint import manifest
from oakum_worker.checkpoint.manifest import FileRecord
from oakum_worker.errors import CheckpointError, CorruptCheckpointError
from oakum_worker.skeleton import assemble, dismantle, empty_tensors

_FINAL = re.compile(r"step-(\d+)")
_TEMPORARY = re.compile(r"step-\d+\.tmp-[0-9a-f]{32}")
DOCUMENT = "state.json"
"""How a checkpoint's tensors go together."""

# One rank writes for all, while others may be in a process group: that DCP does not use it is what we ask for.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True)
class Checkpoint:
    """A folder that was complete and had the content it was written with when last looked at."""

    path: Path
    step: int


class DurableCheckpoints:
    """A trainer's checkpoints in `directory`, of which the newest `keep` stay. One process writes at a time."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        self._writer: threading.Thread | None = None
        self._turn = threading.Lock()
        """Held by the thread that writes: each removes what looks left behind."""
        self._failure: CheckpointError | None = None
        self._unusable: set[Path] = set()
        self.skipped: list[str] = []
        """Why `newest` passed over checkpoints newer than the one it returned last; a sentence for each."""
        self.newest_step: int | None = None
        """Step of the newest checkpoint saved or found here."""

    def save(self, state: Any, step: int) -> Path:
        """Write the state as the checkpoint of `step`, then drop those that need not be kept.

        A checkpoint of this step that is there and whole is left as it is. Raises `CheckpointError`, leaving
        nothing behind, when the disk is full or cannot be written to.
        """
        return self._write(*dismantle(state), step)

    def save_in_background(self, state: Any, step: int) -> bool:
        """Copy the state and write it in a thread. False, and nothing is done, while one is still being written.

        Raises the `CheckpointError` in which the one before ended, if it did, after starting this one.
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
        """Return when nothing is being written in the background."""
        if self._writer is not None:
            self._writer.join()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; what was passed over is in `skipped`. Reads all of its bytes."""
        self.skipped = []
        for checkpoint in self.candidates():
            fault = fault_of(checkpoint)
            self.judge(checkpoint, fault)
            if fault is None:
                return checkpoint
        return None

    def candidates(self) -> list[Checkpoint]:
        """All checkpoints by their names, newest first, looked into or not."""
        try:
            paths = list(self._directory.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"{self._directory} cannot be read: {error.strerror}; make it readable"
            ) from error
        found = [self.named(path.name) for path in paths if _FINAL.fullmatch(path.name)]
        return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)

    def named(self, name: str) -> Checkpoint:
        """The checkpoint of that name, there or not."""
        match = _FINAL.fullmatch(name)
        assert match is not None
        return Checkpoint(self._directory / name, int(match[1]))

    def judge(self, checkpoint: Checkpoint, fault: str | None) -> None:
        """Note that the checkpoint was found to be whole, or what somebody found to be wrong with it."""
        if fault is not None:
            self._unusable.add(checkpoint.path)
            self.skipped.append(f"checkpoint of step {checkpoint.step} is not usable: {fault}")
            return
        self._unusable.discard(checkpoint.path)
        self.newest_step = checkpoint.step

    def temporary(self, step: int, token: str) -> Path:
        """Where the checkpoint of `step` is written to at first; the attempt's token has 32 hexadecimal digits."""
        return self._directory / f"step-{step}.tmp-{token}"

    def clear_up(self, keep: Path) -> None:
        """Remove what writers that died have left behind, but for `keep`. Nobody else may be writing."""
        for path in self._directory.iterdir():
            if _TEMPORARY.fullmatch(path.name) and path != keep:
                shutil.rmtree(path, ignore_errors=True)

    def publish(self, temporary: Path, step: int, known: Mapping[str, FileRecord] = MappingProxyType({})) -> Path:
        """Make a folder in which everything is written the checkpoint of `step`, then drop what need not be kept.

        Raises `CheckpointError`, leaving nothing behind, when it cannot be done.
        """
        with self._turn, self._writing(temporary):
            self._rename(temporary, step, known)
        return self._conclude(step)

    def prepare(self) -> None:
        """Import what writing and reading need, so that a last checkpoint has not to wait for it."""
        from oakum_worker.checkpoint import dcp_files  # noqa: F401

    def load(self, checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        """Replace the content of `state` by the checkpoint's, with new tensors on the CPU.

        Raises `CheckpointError` when it cannot be read; `state` is then what it was.
        """
        from oakum_worker.checkpoint import dcp_files  # late: see there

        try:
            with being_read(checkpoint.path):
                document = json.loads((checkpoint.path / DOCUMENT).read_text(encoding="utf-8"))
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
        return self._directory / f"step-{step}"

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

    def _rename(self, temporary: Path, step: int, known: Mapping[str, FileRecord]) -> None:
        manifest.seal(temporary, step, known)
        if self._final(step).exists():
            _discard(self._final(step))
        temporary.rename(self._final(step))
        manifest.sync(self._directory)

    def _conclude(self, step: int) -> Path:
        final = self._final(step)
        self._unusable.discard(final)
        self.newest_step = step
        self._retire(final)
        return final

    def _retire(self, just_written: Path) -> None:
        """Drop unusable checkpoints, and all but the newest that are kept; never the one just written.

        One of a later step than the one just written comes from a past that training went back behind.
        """
        others = [checkpoint.path for checkpoint in self.candidates() if checkpoint.path != just_written]
        usable = [path for path in others if path not in self._unusable]
        for path in others:
            if path not in usable[: self._keep - 1] and not _is_being_read(path):
                # The new checkpoint is durable already; what cannot be removed now is tried again after the next.
                with contextlib.suppress(OSError):
                    _discard(path)


def fault_of(checkpoint: Checkpoint, share: int = 0, num_shares: int = 1) -> str | None:
    """What is wrong with a checkpoint; None where it is whole. Reads its bytes, or a share of its files' bytes."""
    try:
        with being_read(checkpoint.path):
            manifest.verify(checkpoint.path, share, num_shares)
    except (OSError, CorruptCheckpointError) as error:
        return str(error)
    return None


def _write_files(folder: Path, document: Any, tensors: dict[str, torch.Tensor]) -> None:
    from oakum_worker.checkpoint import dcp_files  # late: see there

    dcp_files.write_tensors(folder, tensors)
    (folder / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    try:
        manifest.verify(folder)
    except (OSError, CorruptCheckpointError):
        return False
    return True


def _discard(folder: Path) -> None:
    """Remove a checkpoint. Renamed first: half removed, it must not be taken for one."""
    doomed = folder.with_name(f"{folder.name}.tmp-{uuid.uuid4().hex}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def being_read(folder: Path) -> Iterator[None]:
    """Keep writers, of this process and of others, from removing the folder meanwhile."""
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
    """The error in one line."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return f"{type(error).__name__}: {error}".splitlines()[0]
