"""The model's buffers as they were at the last step boundary.

A forward pass changes buffers, BatchNorm's running statistics for one, before anybody knows whether the step will
finish. When a peer is lost in between, the step is repeated, and must not find them changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

# torch's own batch norm writes running statistics without raising their version, so versions tell of changes only
# where copying at each step would take long. Statistics are small; large buffers are masks and tables.
_LARGE = 1 << 16


@dataclass(slots=True)
class _Slot:
    module: nn.Module
    name: str
    live: torch.Tensor | None = None
    version: int = -1
    copy: torch.Tensor | None = None

    def is_unchanged(self, live: torch.Tensor) -> bool:
        """Whether `live` certainly still is what was copied."""
        return live is self.live and live._version == self.version and live.numel() >= _LARGE


class BufferSnapshot:
    """Keeps a copy of each buffer; that of a large one is renewed only when it has changed."""

    def __init__(self, model: nn.Module) -> None:
        slots: dict[tuple[int, str], _Slot] = {}
        self._slots = {
            f"{prefix}.{name}" if prefix else name: slots.setdefault((id(module), name), _Slot(module, name))
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, _ in module.named_buffers(recurse=False)
        }

    @property
    def copies(self) -> dict[str, torch.Tensor]:
        """Qualified name -> the buffer as it was noted last."""
        return {name: slot.copy for name, slot in self._slots.items() if slot.copy is not None}

    @torch.no_grad()
    def take(self) -> None:
        """Note the buffers as they are now."""
        for slot in self._slots.values():
            live: torch.Tensor | None = getattr(slot.module, slot.name)
            if live is None or slot.is_unchanged(live):
                continue
            if slot.copy is None or slot.copy.shape != live.shape or slot.copy.dtype != live.dtype:
                slot.copy = torch.empty_like(live)
            slot.copy.copy_(live)
            slot.live, slot.version = live, live._version

    @torch.no_grad()
    def restore(self) -> None:
        """Bring back the buffers noted last, also where the model has put other tensors in their place."""
        for slot in self._slots.values():
            if slot.live is None or slot.copy is None:
                continue
            if getattr(slot.module, slot.name) is not slot.live:
                setattr(slot.module, slot.name, slot.live)
            if not slot.is_unchanged(slot.live):
                slot.live.copy_(slot.copy)
                slot.version = slot.live._version
