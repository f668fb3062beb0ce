"""Writes a checkpoint's weights as one file: safetensors, or a state dict as `torch.save` writes it.

A safetensors file is the length of its header (8 bytes, little endian), the header (JSON: name -> type, shape and
place), and the tensors' bytes in that order (https://huggingface.co/docs/safetensors). It is written here tensor
by tensor, since the library's own writer needs all tensors in memory at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from oakum_worker.checkpoint.document import read_document
from oakum_worker.checkpoint.durable import Checkpoint, being_read, reason
from oakum_worker.checkpoint.weights import find_checkpoint
from oakum_worker.errors import CheckpointError
from oakum_worker.weight_files import SAFETENSORS_TYPES

_TYPES = {dtype: name for name, dtype in SAFETENSORS_TYPES.items()}
_ALIGNMENT = 8
"""The header is padded to a multiple of so many bytes, so that tensors can be mapped into memory."""
Progress = Callable[[int, int], None]
"""Takes the bytes written so far, and all bytes of the tensors."""


@dataclass(frozen=True)
class Exported:
    """Result of `export_weights`: the file, the checkpoint's step, and the number and size of its tensors."""

    file: Path
    step: int
    """Optimizer steps after which the checkpoint was taken."""
    num_tensors: int
    num_bytes: int
    """Bytes of all tensors together."""


@dataclass(frozen=True)
class _Entry:
    """One tensor of a checkpoint: its name in the model, its path in the checkpoint, shape and type."""

    name: str
    path: str
    shape: tuple[int, ...]
    type: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.type.itemsize * torch.Size(self.shape).numel()


def export_weights(
    folder: Path, file: Path, tell: Progress = lambda done, total: None, *, is_exact: bool = True
) -> Exported:
    """Write the weights and buffers of a durable checkpoint to `file`, under their names in the model. Returns
    what was written.

    `folder` is a trainer's folder of checkpoints, of which the newest whole one is taken, or one checkpoint in it.
    The file's suffix chooses the format: `.safetensors`, for which one tensor at a time is in memory, or `.pt` and
    `.pth`, a state dict that is in memory as a whole. The file appears when it is complete. Where the trainer's
    results may depend on its nodes (not `is_exact`), safetensors' metadata have `oakum_exact`, "false". Raises
    `CheckpointError` for another suffix, where no checkpoint is whole, and where the file cannot be written."""
    if file.suffix not in SUFFIXES:
        raise CheckpointError(f"{file}: expected a name that ends in {', '.join(SUFFIXES)}")
    checkpoint = find_checkpoint(folder)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    marks = {} if is_exact else {"oakum_exact": "false"}
    try:
        with being_read(checkpoint.path):
            entries = _entries(checkpoint)
            with part.open("wb") as stream:
                _WRITERS[file.suffix](stream, checkpoint, entries, tell, marks)
            part.replace(file)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint.path} cannot be exported to {file}: {reason(error)}") from error
    finally:
        part.unlink(missing_ok=True)
    return Exported(file, checkpoint.step, len(entries), sum(entry.num_bytes for entry in entries))


def _entries(checkpoint: Checkpoint) -> list[_Entry]:
    """The tensors of the checkpoint's model, in the model's order. What a module keeps beside tensors
    (`get_extra_state`) is not among them."""
    document: Mapping[str, Any] = read_document(checkpoint.path)["model"]
    return [
        _Entry(name, leaf["$tensor"], tuple(leaf["shape"]), getattr(torch, leaf["dtype"]))
        for name, leaf in document.items()
        if isinstance(leaf, dict) and "$tensor" in leaf
    ]


def _tensors(checkpoint: Checkpoint, entries: list[_Entry], tell: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the tensors one after the other; yields each one's name and value, and calls `tell` after each."""
    from oakum_worker.checkpoint import dcp_files  # late: see there

    total, done = sum(entry.num_bytes for entry in entries), 0
    for entry in entries:
        tensor = torch.empty(entry.shape, dtype=entry.type)
        dcp_files.read_tensors(checkpoint.path, {entry.path: tensor})
        yield entry.name, tensor
        done += entry.num_bytes
        tell(done, total)


def _write_safetensors(
    stream: IO[bytes], checkpoint: Checkpoint, entries: list[_Entry], tell: Progress, marks: Mapping[str, str]
) -> None:
    stream.write(_header(entries, {"format": "pt", "oakum_step": str(checkpoint.step), **marks}))
    for _, tensor in _tensors(checkpoint, entries, tell):
        # numpy knows no bfloat16, so the bytes are taken as such; a tensor without elements has none.
        stream.write(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")


def _header(entries: list[_Entry], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a safetensors file: the header's length and the header. Raises `ValueError` for a type that
    the format does not know."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    begin = 0
    for entry in entries:
        if entry.type not in _TYPES:
            raise ValueError(f"{entry.name} has the type {entry.type}, which safetensors does not know: use .pt")
        end = begin + entry.num_bytes
        header[entry.name] = {"dtype": _TYPES[entry.type], "shape": entry.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_state_dict(
    stream: IO[bytes], checkpoint: Checkpoint, entries: list[_Entry], tell: Progress, marks: Mapping[str, str]
) -> None:
    torch.save(dict(_tensors(checkpoint, entries, tell)), stream)  # its readers expect tensors alone: no marks


_Writer = Callable[[IO[bytes], Checkpoint, list[_Entry], Progress, Mapping[str, str]], None]
_WRITERS: dict[str, _Writer] = {
    ".safetensors": _write_safetensors,
    ".pt": _write_state_dict,
    ".pth": _write_state_dict,
}
"""A file's suffix -> what writes such a file: the checkpoint's tensors, with marks where the format takes any."""
SUFFIXES = tuple(_WRITERS)
