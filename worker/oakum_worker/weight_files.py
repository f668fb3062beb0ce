"""Reads files of weights, and begins a model from one.

A safetensors file is the length of its header (8 bytes, little endian), the header (JSON: name -> type, shape and
place), and the tensors' bytes in that order (https://huggingface.co/docs/safetensors). It is mapped into memory,
so that a model is filled without a second copy of its weights. A state dict is read with `weights_only=True`,
which runs no code of the file.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.listing import some_of

SAFETENSORS_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Name of a type in a safetensors file -> the type."""
_LONGEST_HEADER = 100_000_000
"""Bytes; the safetensors library reads no longer header either."""
_SHOWN = 3


def begin_from_file(model: nn.Module, path: Path) -> None:
    """Copy the weights and buffers in the file into the model, by name; they take the model's types and devices.

    Raises `TaskError` where the file cannot be read, or is another model's: the message names what is missing,
    unexpected or of another shape. The model is then what it was.
    """
    weights = _read(path)
    own = {name: value for name, value in model.state_dict(keep_vars=True).items() if torch.is_tensor(value)}
    if differing := _differing(weights, own):
        raise TaskError(
            f"the weights in {path} are not those of the model that the entrypoint builds: {differing}. Build the "
            "same model, or name its own file in the spec's `initial`"
        )
    model.load_state_dict(weights, strict=False)


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except TaskError:
        raise
    except OSError as error:
        raise TaskError(
            f"{path} cannot be read: {error.strerror or error}; correct the spec's `initial`"
        ) from error
    except Exception as error:
        # torch raises errors of many types for what is no state dict, or has more in it than tensors.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise TaskError(
            f"{path} cannot be read as a file of weights ({reason[0]:.200}): write it with "
            "torch.save(model.state_dict(), ...) or as safetensors"
        ) from error
    return _tensors_of(loaded, path)


def _tensors_of(loaded: Any, path: Path) -> dict[str, torch.Tensor]:
    if isinstance(loaded, Mapping) and loaded and all(map(torch.is_tensor, loaded.values())):
        return dict(loaded)
    content = f"a {type(loaded).__name__}"
    if isinstance(loaded, Mapping):
        content = f"a dict with {', '.join(repr(key) for key in [*loaded][:_SHOWN]) or 'nothing'} in it"
    raise TaskError(f"{path} holds {content}, not tensors by name: save model.state_dict() alone")


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        begin = file.read(8)
        length = int.from_bytes(begin, "little")
        size = path.stat().st_size
        if len(begin) < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError("it is cut off, or no safetensors file")
        header = json.loads(file.read(length))
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    header.pop("__metadata__", None)
    return {name: _mapped(memory, 8 + length, name, entry) for name, entry in header.items()}


def _mapped(memory: mmap.mmap, base: int, name: str, entry: Mapping[str, Any]) -> torch.Tensor:
    """The tensor that the header's `entry` describes; its memory is the file's, which is not written to."""
    if entry["dtype"] not in SAFETENSORS_TYPES:
        raise ValueError(f"{name} has the type {entry['dtype']}, which is not read here")
    dtype, shape = SAFETENSORS_TYPES[entry["dtype"]], [int(length) for length in entry["shape"]]
    first, end = (int(place) for place in entry["data_offsets"])
    fits = min(shape, default=0) >= 0 and end - first == math.prod(shape) * dtype.itemsize
    if not fits or first < 0 or base + end > len(memory):
        raise ValueError(f"{name} lies at bytes {first} to {end}, which do not fit its shape {shape} or the file")
    if first == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=base + first).view(shape)


def _differing(weights: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> str:
    """What differs in names and shapes between the file's weights and the model's; empty where nothing does."""
    given_ids = {id(own[name]) for name in weights if name in own}
    missing = [name for name, value in own.items() if name not in weights and id(value) not in given_ids]
    unexpected = [name for name in weights if name not in own]
    shapes = [
        f"{name} is {tuple(value.shape)} in the file and {tuple(own[name].shape)} in the model"
        for name, value in weights.items()
        if name in own and value.shape != own[name].shape
    ]
    differences = [
        f"{what} {some_of(names, _SHOWN)}"
        for what, names in (("missing:", missing), ("unexpected:", unexpected), ("other shapes:", shapes))
        if names
    ]
    if unexpected and all(name.startswith("module.") for name in unexpected):
        differences.append(
            "names begin with `module.`, as DistributedDataParallel writes them: save its module's state"
        )
    return "; ".join(differences)
