"""How much memory tensors take at a time, counted where they are made: for devices that do not tell, as CPUs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryLimitError(Exception):
    """Tensors would take more memory than they may."""


class LiveMemory(TorchDispatchMode):
    """While it is entered, counts the bytes of all tensors that operations return, until they are freed.

    What an operation takes within itself and gives back before it ends is not seen.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        """Where the limit is passed, the operation that passed it raises `MemoryLimitError`."""
        super().__init__()
        self._limit_bytes = limit_bytes
        self._sizes: dict[int, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        """The most at one time."""

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count what is there already. Raises `MemoryLimitError`."""
        for tensor in tensors:
            self._note(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        weakref.finalize(storage, self._forget, key).atexit = False
        self.live_bytes += self._sizes[key]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if self._limit_bytes is not None and self.live_bytes > self._limit_bytes:
            raise MemoryLimitError(f"{self.live_bytes} bytes of tensors are more than {self._limit_bytes}")

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key)
