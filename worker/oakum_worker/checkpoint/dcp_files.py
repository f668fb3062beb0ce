"""Tensors in a folder, as torch's distributed checkpoint (DCP) stores them.

Apart from the rest because importing DCP takes half a second that a joining node would be late by: it is imported
when a checkpoint is first read or written, which is later and off the training thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Store the tensors under their names. Raises whatever went wrong, such as `OSError`."""
    with own_errors():
        dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(folder, sync_files=False), no_dist=True)


def read_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill the tensors by their names. Raises whatever went wrong, such as `OSError`."""
    with own_errors():
        dcp.load(dict(tensors), storage_reader=dcp.FileSystemReader(folder), no_dist=True)


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise the error that matters, which DCP wraps into one of its own that is not even an `Exception`."""
    try:
        yield
    except dcp.CheckpointException as error:
        cause = _first(next((failure for failure, _ in error.failures.values()), error))
        raise cause if isinstance(cause, Exception) else RuntimeError(str(error)) from error


def _first(error: BaseException) -> BaseException:
    """What the system said, if it said something: torch's writers fail anew when they are closed after that."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error
