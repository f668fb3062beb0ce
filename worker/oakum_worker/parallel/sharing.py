"""One rank's state, sent to all ranks of its group: how a newcomer gets what the survivors know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.skeleton import assemble, dismantle, empty_tensors

_CHUNK_BYTES = 64 << 20


def share(state: Any, group: dist.ProcessGroup, rank: int, source: int, device: torch.device) -> Any:
    """Collective: the state that rank `source` gave, bit for bit, on every rank. What others give is ignored.

    First the length of a JSON document, then the document, then the tensors as bytes, small ones gathered into
    chunks, since each broadcast costs a round trip. `device` is one that the group can send from.
    Raises `GroupError` when a rank is gone.
    """
    try:
        if rank == source:
            document, tensors = dismantle(state)
            _send_document(document, group, source, device)
            for chunk in _chunks(tensors):
                _send_chunk(chunk, group, source, device)
            return state
        document = _receive_document(group, source, device)
        tensors = empty_tensors(document)
        for chunk in _chunks(tensors):
            _receive_chunk(chunk, group, source, device)
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while the state was shared: {error}") from error
    return assemble(document, tensors)


def _send_document(document: Any, group: dist.ProcessGroup, source: int, device: torch.device) -> None:
    text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8).to(device)
    dist.broadcast(torch.tensor([text.numel()], device=device), group=group, group_src=source)
    dist.broadcast(text, group=group, group_src=source)


def _receive_document(group: dist.ProcessGroup, source: int, device: torch.device) -> Any:
    length = torch.zeros(1, dtype=torch.int64, device=device)
    dist.broadcast(length, group=group, group_src=source)
    text = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(text, group=group, group_src=source)
    return json.loads(bytes(text.tolist()))


def _send_chunk(chunk: list[torch.Tensor], group: dist.ProcessGroup, source: int, device: torch.device) -> None:
    parts = [_as_bytes(tensor).to(device) for tensor in chunk]
    dist.broadcast(parts[0] if len(parts) == 1 else torch.cat(parts), group=group, group_src=source)


def _receive_chunk(chunk: list[torch.Tensor], group: dist.ProcessGroup, source: int, device: torch.device) -> None:
    parts = [_as_bytes(tensor) for tensor in chunk]
    sizes = [part.numel() for part in parts]
    flat = parts[0].to(device) if len(parts) == 1 else torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    dist.broadcast(flat, group=group, group_src=source)
    for part, received in zip(parts, flat.split(sizes), strict=True):
        if part.data_ptr() != received.data_ptr():
            part.copy_(received)


def _chunks(tensors: dict[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors that are not empty, in order, gathered until a chunk is full; a large one goes alone."""
    chunk: list[torch.Tensor] = []
    size = 0
    for tensor in tensors.values():
        if chunk and size + tensor.nbytes > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        if tensor.nbytes:
            chunk.append(tensor)
            size += tensor.nbytes
    if chunk:
        yield chunk


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Bytes, because gloo takes neither booleans nor the 8-bit floats, and because one chunk may hold all types.
    return tensor.contiguous().reshape(-1).view(torch.uint8)
