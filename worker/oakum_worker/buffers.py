"""The model's buffers as they were at the last step boundary.

A forward pass changes buffers, BatchNorm's running statistics for one, before anybody knows whether the step will
finish. When a peer is lost in between, the step is repeated, and must not find them changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(slots=True)
class _Slot:
    module: nn.Module
    name: str
    live: torch.Tensor | None = None
    version: int = -1
    copy: torch.Tensor | None = None


class BufferSnapshot:
    """Keeps a copy of each buffer, renewed only when the buffer has changed since."""

    def __init__(self, model: nn.Module) -> None:
        self._slots = [
            _Slot(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def take(self) -> None:
        """Note the buffers as they are now."""
        for slot in self._slots:
            live: torch.Tensor | None = getattr(slot.module, slot.name)
            if live is None or (live is slot.live and live._version == slot.version):
                continue
            if slot.copy is None or slot.copy.shape != live.shape or slot.copy.dtype != live.dtype:
                slot.copy = torch.empty_like(live)
            slot.copy.copy_(live)
            slot.live, slot.version = live, live._version

    @torch.no_grad()
    def restore(self) -> None:
        """Bring back the buffers noted last, also where the model has put other tensors in their place."""
        for slot in self._slots:
            if slot.live is None or slot.copy is None:
                continue
            if getattr(slot.module, slot.name) is not slot.live:
                setattr(slot.module, slot.name, slot.live)
            if slot.live._version != slot.version:
                slot.live.copy_(slot.copy)
                slot.version = slot.live._version
