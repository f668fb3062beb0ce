"""A copy of the state in the node's memory that outlives the rank: a file without a name, held open by the agent.

    bytes 0-7    1 + the copy's step; 0 while there is none or one is being written
    bytes 8-15   length of the JSON document that follows the header
    then         the document, then the tensors' bytes in its order, each aligned to 64

A process that dies does not undo or reorder what it has written to memory, so the first number, written last,
tells a whole copy from a torn one. The memory goes when the agent goes: nothing is left on the node.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from oakum_worker.errors import CheckpointError
from oakum_worker.skeleton import assemble, dismantle, empty_tensors

_HEADER = struct.Struct("<QQ")
_ALIGNMENT = 64


class HostMemory:
    """Stores a state and finds it again, from whichever process holds the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    def store(self, state: Any, step: int) -> None:
        """Replace the copy. Raises `CheckpointError` where the node has no memory for it; there is none then."""
        document, tensors = dismantle(state)
        text = json.dumps(document).encode()
        places = dict(_places(tensors, _HEADER.size + len(text)))
        self.clear()
        try:
            memory = self._map(max((end for _, end in places.values()), default=_HEADER.size + len(text)))
        except OSError as error:
            raise CheckpointError(
                f"no copy of the state is kept in memory: {error.strerror}; use nodes with more memory"
            ) from error
        memory[_HEADER.size : _HEADER.size + len(text)] = text
        for path, (start, end) in places.items():
            target = torch.frombuffer(memory, dtype=torch.uint8, count=end - start, offset=start)
            tensor = tensors[path]
            target.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        _HEADER.pack_into(memory, 0, step + 1, len(text))

    def load(self) -> tuple[Any, int] | None:
        """A copy of the copy and its step; None where there is none or it was never finished."""
        size = os.fstat(self._descriptor).st_size
        if size < _HEADER.size:
            return None
        memory = self._map(size)
        mark, length = _HEADER.unpack_from(memory)
        if not mark:
            return None
        document = json.loads(memory[_HEADER.size : _HEADER.size + length])
        tensors = empty_tensors(document)
        for path, (start, end) in _places(tensors, _HEADER.size + length):
            source = torch.frombuffer(memory, dtype=torch.uint8, count=end - start, offset=start)
            tensors[path].view(-1).view(torch.uint8).copy_(source)
        return assemble(document, tensors), mark - 1

    def clear(self) -> None:
        """There is no copy any more. Its memory stays for the next one."""
        if self._mapped is not None or os.fstat(self._descriptor).st_size >= _HEADER.size:
            _HEADER.pack_into(self._map(_HEADER.size), 0, 0, 0)

    def release(self) -> None:
        """There is no copy any more, and its memory is given back."""
        self._mapped = None
        os.ftruncate(self._descriptor, 0)

    def _map(self, size: int) -> mmap.mmap:
        """The file's memory, of at least `size` bytes."""
        if self._mapped is None or len(self._mapped) < size:
            # Reserved, so that a node without memory refuses here instead of killing whoever writes.
            os.posix_fallocate(self._descriptor, 0, size)
            self._mapped = mmap.mmap(self._descriptor, max(size, os.fstat(self._descriptor).st_size))
        return self._mapped


def _places(tensors: Mapping[str, torch.Tensor], offset: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Path -> first byte and the byte after the last, of the tensors that are not empty."""
    for path, tensor in tensors.items():
        if tensor.nbytes:
            offset += -offset % _ALIGNMENT
            yield path, (offset, offset + tensor.nbytes)
            offset += tensor.nbytes
