"""A copy of the state in the node's memory that outlives the rank: a file without a name, held open by the agent.

    header       see `memory_header`
    then         the document, then the tensors' bytes in its order, each aligned to 64

A process that dies does not undo or reorder what it has written to memory, so the header's first number, written
last, tells a whole copy from a torn one. The memory goes when the agent goes: nothing is left on the node.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from oakum_worker.checkpoint.memory_header import HEADER
from oakum_worker.errors import CheckpointError
from oakum_worker.state.tree import assemble, dismantle, empty_tensors

_ALIGNMENT = 64


class HostMemory:
    """Stores a state and finds it again, from whichever process holds the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    def store(self, state: Any, step: int) -> None:
        """Replace the stored copy by a copy of `state` after `step` steps. Raises `CheckpointError` where the node
        lacks the memory; then no copy is left."""
        document, tensors = dismantle(state)
        text = json.dumps(document).encode()
        places = dict(_places(tensors, HEADER.size + len(text)))
        self.clear()
        try:
            memory = self._map(max((end for _, end in places.values()), default=HEADER.size + len(text)))
        except OSError as error:
            raise CheckpointError(
                f"no copy of the state is kept in memory: {error.strerror}; use nodes with more memory"
            ) from error
        memory[HEADER.size : HEADER.size + len(text)] = text
        for path, (start, end) in places.items():
            target = torch.frombuffer(memory, dtype=torch.uint8, count=end - start, offset=start)
            tensor = tensors[path]
            target.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        HEADER.pack_into(memory, 0, step + 1, len(text))

    def load(self) -> tuple[Any, int] | None:
        """The stored state, as new tensors, and its step; None where the memory holds no finished copy."""
        size = os.fstat(self._descriptor).st_size
        if size < HEADER.size:
            return None
        memory = self._map(size)
        mark, length = HEADER.unpack_from(memory)
        if not mark:
            return None
        document = json.loads(memory[HEADER.size : HEADER.size + length])
        tensors = empty_tensors(document)
        for path, (start, end) in _places(tensors, HEADER.size + length):
            source = torch.frombuffer(memory, dtype=torch.uint8, count=end - start, offset=start)
            tensors[path].view(-1).view(torch.uint8).copy_(source)
        return assemble(document, tensors), mark - 1

    def clear(self) -> None:
        """Discard the stored copy, and keep its memory for the next one."""
        if self._mapped is not None or os.fstat(self._descriptor).st_size >= HEADER.size:
            HEADER.pack_into(self._map(HEADER.size), 0, 0, 0)

    def release(self) -> None:
        """Discard the stored copy, and give its memory back to the node."""
        self._mapped = None
        os.ftruncate(self._descriptor, 0)

    def _map(self, size: int) -> mmap.mmap:
        """The file's memory, of at least `size` bytes."""
        if self._mapped is None or len(self._mapped) < size:
            # Reserve the memory: a node that lacks it then refuses here and kills no process that writes.
            os.posix_fallocate(self._descriptor, 0, size)
            self._mapped = mmap.mmap(self._descriptor, max(size, os.fstat(self._descriptor).st_size))
        return self._mapped


def _places(tensors: Mapping[str, torch.Tensor], offset: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """(path, (first byte, byte after the last)) of each tensor that is not empty, in a file whose tensors begin at
    or after `offset`, aligned to 64 bytes."""
    for path, tensor in tensors.items():
        if tensor.nbytes:
            offset += -offset % _ALIGNMENT
            yield path, (offset, offset + tensor.nbytes)
            offset += tensor.nbytes
