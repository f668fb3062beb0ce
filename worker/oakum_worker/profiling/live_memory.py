"""Counts the memory of living tensors by watching the operations that make them, for devices such as CPUs that
keep no such count."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from oakum_worker.torch_internals import TorchDispatchMode, storage_address, tree_leaves


class MemoryLimitError(Exception):
    """The tensors that exist take more memory than the limit given to `LiveMemory`."""


class LiveMemory(TorchDispatchMode):
    """Context that counts the bytes of all tensors that torch operations return within it, each until it is freed.

    Memory that an operation takes and frees before it returns is not counted.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: the operation whose result takes the count beyond it raises `MemoryLimitError`. None: no
        limit."""
        super().__init__()
        self._limit_bytes = limit_bytes
        self._sizes: dict[int, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        """The most bytes at one time."""

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that exist already, each memory once. Raises `MemoryLimitError` where the count goes
        beyond the limit."""
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
        key = storage_address(storage)
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
