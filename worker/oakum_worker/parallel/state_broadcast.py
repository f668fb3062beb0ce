"""Broadcasts one rank's state to all ranks of its group, for instance a survivor's state to newcomers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel.waiting import broadcast, refuse_void
from oakum_worker.state.tree import assemble, dismantle, empty_tensors

_CHUNK_BYTES = 64 << 20


def broadcast_state(state: Any, group: dist.ProcessGroup, rank: int, source: int, device: torch.device) -> Any:
    """Collective: returns the `state` of rank `source`, bit for bit, on every rank; other ranks' `state` is
    ignored.

    Sends the length of a JSON document, the document, and the tensors as bytes. Small tensors are packed into
    chunks, because each broadcast costs a round trip. `device` is one from which the group can send.
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
        refuse_void(device)
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while the state was shared: {error}") from error
    return assemble(document, tensors)


def _send_document(document: Any, group: dist.ProcessGroup, source: int, device: torch.device) -> None:
    text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8).to(device)
    broadcast(torch.tensor([text.numel()], device=device), group, source)
    broadcast(text, group, source)


def _receive_document(group: dist.ProcessGroup, source: int, device: torch.device) -> Any:
    length = torch.zeros(1, dtype=torch.int64, device=device)
    broadcast(length, group, source)
    refuse_void(device)
    text = torch.empty(int(length), dtype=torch.uint8, device=device)
    broadcast(text, group, source)
    refuse_void(device)
    return json.loads(bytes(text.tolist()))


def _send_chunk(chunk: list[torch.Tensor], group: dist.ProcessGroup, source: int, device: torch.device) -> None:
    parts = [_as_bytes(tensor).to(device) for tensor in chunk]
    broadcast(parts[0] if len(parts) == 1 else torch.cat(parts), group, source)


def _receive_chunk(chunk: list[torch.Tensor], group: dist.ProcessGroup, source: int, device: torch.device) -> None:
    parts = [_as_bytes(tensor) for tensor in chunk]
    sizes = [part.numel() for part in parts]
    flat = parts[0].to(device) if len(parts) == 1 else torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    broadcast(flat, group, source)
    for part, received in zip(parts, flat.split(sizes), strict=True):
        if part.data_ptr() != received.data_ptr():
            part.copy_(received)


def _chunks(tensors: dict[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group the tensors that are not empty, in order, into chunks; a larger tensor is a chunk of its own."""
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
    # Bytes, because gloo accepts neither booleans nor 8-bit floats, and a chunk may mix types.
    return tensor.contiguous().reshape(-1).view(torch.uint8)
