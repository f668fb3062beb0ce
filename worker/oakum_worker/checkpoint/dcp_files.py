"""Tensors in a folder, as torch's distributed checkpoint (DCP) stores them.

A module of its own, because importing DCP takes half a second, by which a joining node would be late. It is
imported in the background, or when a checkpoint is first read or written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from oakum_worker.checkpoint.dcp_index import IndexedReader


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Store the tensors under their names in `folder`, in DCP's format. Raises the error that made it fail, such
    as `OSError`, not DCP's wrapper of it."""
    with own_errors():
        dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(folder, sync_files=False), no_dist=True)


def read_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Read stored values into the tensors, by their names; their memory is overwritten. Raises the error that made
    it fail, such as `OSError`, not DCP's wrapper of it."""
    with own_errors():
        dcp.load(dict(tensors), storage_reader=IndexedReader(folder), no_dist=True)


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Context that raises the original error in place of DCP's wrapper, which is not an `Exception`."""
    try:
        yield
    except dcp.CheckpointException as error:
        cause = _first(next((failure for failure, _ in error.failures.values()), error))
        raise cause if isinstance(cause, Exception) else RuntimeError(str(error)) from error


def _first(error: BaseException) -> BaseException:
    """The first `OSError` among the error and its causes, else the error: torch's writers fail again on
    closing."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error
