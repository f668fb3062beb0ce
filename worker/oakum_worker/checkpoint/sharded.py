"""Durable checkpoints of sharded trainers: every rank writes its own rows, rank 0 makes one checkpoint of them.

    step-1200.tmp-<token>/   __0_0.distcp rank-0.json   __1_0.distcp rank-1.json   ...

Each rank brings its file to the disk, and writes a description of the file's content with its checksum. A rank's
success is sent along with a training step; when all ranks have succeeded, rank 0 joins the files and gives the
folder its final name. No rank waits for another one, so a lost rank leaves only a folder that never becomes a
checkpoint.

Any number of ranks can read a finished checkpoint, which has the format of an unsharded trainer's checkpoint.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from oakum_worker.checkpoint import manifest
from oakum_worker.checkpoint.document import document_path, read_document, write_document
from oakum_worker.checkpoint.durable import (
    Checkpoint,
    DurableCheckpoints,
    being_read,
    fault_of,
    reason,
)
from oakum_worker.checkpoint.manifest import FileRecord
from oakum_worker.errors import CheckpointError
from oakum_worker.parallel.holdings import Place, Rows, SplitTensor
from oakum_worker.parallel.split_state import LocalState
from oakum_worker.state.tree import Document, tensor_leaves


@dataclass(eq=False)
class _Attempt:
    """One attempt to write this rank's share of a checkpoint, in a thread, with its result."""

    state: LocalState
    """Copies of the rank's tensors, which no later step changes."""
    step: int
    place: Place
    folder: Path
    results: Sequence[Any] = ()
    error: CheckpointError | None = None
    is_reported: bool = False
    thread: threading.Thread = field(default_factory=threading.Thread)


class ShardedCheckpoints:
    """Writes this rank's share of each durable checkpoint, one checkpoint at a time, and on rank 0 joins all
    shares."""

    def __init__(self, checkpoints: DurableCheckpoints, every_s: float, warn: Callable[[str], None]) -> None:
        self._checkpoints = checkpoints
        self._every_s = every_s
        self._warn = warn
        self._begun_s = time.monotonic()
        self._attempt: _Attempt | None = None
        self._num_written = 0
        self._publisher: threading.Thread | None = None

    @property
    def due(self) -> bool:
        """Whether a new checkpoint is to be started: none is in progress, and the last one began at least
        `every_s` seconds ago."""
        return not self.busy and self.age_s >= self._every_s

    @property
    def age_s(self) -> float:
        """Seconds since the last checkpoint began, or since this rank began to train."""
        return time.monotonic() - self._begun_s

    def take_over_age(self, age_s: float) -> None:
        """Let the last checkpoint count as begun `age_s` seconds ago. Another rank may know of a later one than
        this rank."""
        self._begun_s = time.monotonic() - age_s

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was started and is not concluded yet. Every rank has the same answer."""
        return self._attempt is not None

    @property
    def written(self) -> bool:
        """Whether this rank's share of the checkpoint in progress is on the disk; False without one."""
        attempt = self._attempt
        return attempt is not None and not attempt.thread.is_alive() and attempt.error is None

    def start(self, state: LocalState, step: int, place: Place, generation: int) -> None:
        """Copy this rank's share, and begin to write it in a thread; `outcome` tells how that ended. Every rank
        has to call this at the same step, and only while no checkpoint is in progress (`busy`)."""
        rows = {path: tensor.to("cpu", copy=True) for path, tensor in state.rows.items()}
        whole = {path: tensor.to("cpu", copy=True) for path, tensor in state.whole.items()}
        copies = LocalState(state.document, whole, rows, state.tensors)
        token = uuid.uuid5(uuid.NAMESPACE_OID, f"generation {generation}, step {step}").hex
        self._attempt = _Attempt(copies, step, place, self._checkpoints.temporary(step, token))
        self._attempt.thread = threading.Thread(
            target=self._write, args=(self._attempt,), name="checkpoint", daemon=True
        )
        self._num_written, self._begun_s = 0, time.monotonic()
        self._attempt.thread.start()

    def outcome(self) -> tuple[int, int]:
        """What this rank has to vote in this step: (1, 0) once its share is written, (0, 1) if that failed. Each
        is returned once for a checkpoint, and (0, 0) at all other calls."""
        attempt = self._attempt
        if attempt is None or attempt.is_reported or attempt.thread.is_alive():
            return 0, 0
        attempt.is_reported = True
        return (1, 0) if attempt.error is None else (0, 1)

    def count(self, num_written: int, num_failed: int) -> None:
        """Take in how many ranks have reported in a step that their share is written, and how many that it failed.
        A failure ends the checkpoint in progress; when all ranks have written, it is published."""
        self._num_written += num_written
        if num_failed:
            self.conclude(publish=False)
        elif self._attempt is not None and self._num_written == self._attempt.place.world_size:
            self.conclude(publish=True)

    def conclude(self, *, publish: bool, retry: bool = False) -> None:
        """End the checkpoint in progress, if any. With `publish` all ranks have written their shares, and rank 0
        makes them a checkpoint in a thread; else the user is warned of this rank's error, if any.

        The folder of an unpublished checkpoint is removed when the next checkpoint is begun. With `retry`, and
        without `publish`, the next one is due at once.
        """
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if publish:
            if attempt.place.rank == 0:
                self._publisher = threading.Thread(
                    target=self._publish, args=(attempt,), name="publish", daemon=True
                )
                self._publisher.start()
            return
        if attempt.error is not None:
            self._warn(str(attempt.error))
        if retry:
            self._begun_s -= self._every_s

    def wait(self) -> None:
        """Wait until this rank is writing no share and publishing no checkpoint."""
        for thread in (self._attempt.thread if self._attempt else None, self._publisher):
            if thread is not None:
                thread.join()

    def stored(self, place: Place, tell: Callable[[Any], list[Any]]) -> Iterator[StoredState]:
        """The checkpoints that are whole, newest first, among those that rank 0 finds. Collective, at each one:
        every rank verifies a share of the files, and `tell` sends each rank's JSON document to all. Rank 0 warns
        the user of unusable ones."""
        own_names = [checkpoint.path.name for checkpoint in self._checkpoints.candidates()]
        names = tell(own_names if place.rank == 0 else None)[0]
        for checkpoint in map(self._checkpoints.named, names):
            stored, fault = _look_into(checkpoint, place)
            faults = [fault for fault in tell(fault) if fault is not None]
            self._checkpoints.judge(checkpoint, faults[0] if faults else None)
            if stored is not None and not faults:
                yield stored
            elif place.rank == 0:
                self._warn(f"checkpoint of step {checkpoint.step} is not usable: {faults[0]}")

    def _write(self, attempt: _Attempt) -> None:
        from oakum_worker.checkpoint import dcp_rows  # late: see there

        state, rank = attempt.state, attempt.place.rank
        try:
            self._checkpoints.check(state.rows, attempt.step)
            attempt.folder.mkdir(parents=True, exist_ok=True)
            if rank == 0:
                self._checkpoints.clear_up(keep=attempt.folder)
            whole = state.whole if rank == 0 else {}
            results = dcp_rows.write_rows(attempt.folder, state.tensors, attempt.place, state.rows, whole)
            files = {name: manifest.record_of(attempt.folder / name) for name in dcp_rows.files_of(results)}
            share = {
                "results": dcp_rows.describe(results),
                "files": {name: record.model_dump() for name, record in files.items()},
            }
            (attempt.folder / f"rank-{rank}.json").write_text(json.dumps(share), encoding="utf-8")
            attempt.results = results
        except CheckpointError as error:
            attempt.error = error
        except Exception as error:
            attempt.error = CheckpointError(
                f"checkpoints cannot be written to {attempt.folder.parent}: "
                f"{reason(error)}; free space there or make it writable. Older checkpoints are untouched"
            )

    def _publish(self, attempt: _Attempt) -> None:
        from oakum_worker.checkpoint import dcp_rows  # late: see there

        state, folder = attempt.state, attempt.folder
        try:
            indexes = [folder / f"rank-{rank}.json" for rank in range(attempt.place.world_size)]
            shares = [json.loads(index.read_text(encoding="utf-8")) for index in indexes]
            records = _records(shares)
            for name, record in records.items():
                if (folder / name).stat().st_size != record.size_bytes:
                    raise OSError(f"{name} is not as long as it was written")
            described = [share["results"] for share in shares]
            dcp_rows.join_files(
                folder, state.tensors, attempt.place.holdings, state.whole, described, attempt.results
            )
            for index in indexes:
                index.unlink()
            write_document(folder, state.document)
            self._checkpoints.publish(folder, attempt.step, records)
        except CheckpointError as error:
            self._warn(str(error))
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._warn(
                f"the checkpoint of step {attempt.step} cannot be put together in {folder}: {reason(error)}; "
                "older checkpoints are untouched"
            )


@dataclass(frozen=True)
class StoredState:
    """A whole checkpoint's document, from which each rank can read its share of the tensors."""

    path: Path
    document: Document

    def try_reading(
        self, tensors: Sequence[SplitTensor], place: Place, rows: Rows
    ) -> tuple[dict[str, torch.Tensor], str | None]:
        """Read this rank's `rows` from the checkpoint; their memory is overwritten. Returns (path -> tensor for
        those that are not split, None), or (nothing, what went wrong)."""
        from oakum_worker.checkpoint import dcp_rows  # late: see there

        split = {tensor.path for tensor in tensors}
        whole = {
            leaf["$tensor"]: torch.empty(leaf["shape"], dtype=getattr(torch, leaf["dtype"]))
            for leaf in tensor_leaves(self.document)
            if leaf["$tensor"] not in split
        }
        try:
            with being_read(self.path):
                dcp_rows.read_rows(self.path, tensors, place, rows, whole)
        except Exception as error:
            return {}, f"{self.path} cannot be read: {reason(error)}"
        return whole, None


def _look_into(checkpoint: Checkpoint, place: Place) -> tuple[StoredState | None, str | None]:
    """(the checkpoint's document, None), or (None, what is wrong with the share of the files that this rank
    verifies)."""
    fault = fault_of(checkpoint, place.rank, place.world_size)
    if fault is not None:
        return None, fault
    try:
        return StoredState(checkpoint.path, read_document(checkpoint.path)), None
    except (OSError, ValueError) as error:
        return None, f"{document_path(checkpoint.path)} cannot be read: {reason(error)}"


def _records(shares: Sequence[Mapping[str, Any]]) -> dict[str, FileRecord]:
    return {name: FileRecord.model_validate(record) for share in shares for name, record in share["files"].items()}
