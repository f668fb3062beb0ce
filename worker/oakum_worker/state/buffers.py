"""The model's buffers as they were at the last step boundary.

A forward pass changes buffers, for example BatchNorm's running statistics, before it is known whether the step
will finish. If a peer is lost in between, the step is repeated and has to begin with the old buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from oakum_worker.torch_internals import tensor_version

# torch's own batch norm writes running statistics without raising their version, so versions tell of changes only
# where copying at each step would take long. Statistics are small; large buffers are masks and tables.
_LARGE = 1 << 16


@dataclass(slots=True)
class _BufferSlot:
    module: nn.Module
    name: str
    live: torch.Tensor | None = None
    version: int = -1
    copy: torch.Tensor | None = None

    def is_unchanged(self, live: torch.Tensor) -> bool:
        """Whether `live` is certain to be unchanged since it was copied; False where that cannot be told."""
        return live is self.live and tensor_version(live) == self.version and live.numel() >= _LARGE


class BufferSnapshot:
    """Keeps a copy of each of the model's buffers. A buffer that is certain to be unchanged is not copied
    again."""

    def __init__(self, model: nn.Module) -> None:
        slots: dict[tuple[int, str], _BufferSlot] = {}
        self._slots = {
            f"{prefix}.{name}" if prefix else name: slots.setdefault((id(module), name), _BufferSlot(module, name))
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, _ in module.named_buffers(recurse=False)
        }

    @property
    def copies(self) -> dict[str, torch.Tensor]:
        """Qualified name -> copy of the buffer at the last `take`."""
        return {name: slot.copy for name, slot in self._slots.items() if slot.copy is not None}

    @torch.no_grad()
    def take(self) -> None:
        """Copy the buffers that may have changed since the last call."""
        for slot in self._slots.values():
            live: torch.Tensor | None = getattr(slot.module, slot.name)
            if live is None or slot.is_unchanged(live):
                continue
            if slot.copy is None or slot.copy.shape != live.shape or slot.copy.dtype != live.dtype:
                slot.copy = torch.empty_like(live)
            slot.copy.copy_(live)
            slot.live, slot.version = live, tensor_version(live)

    @torch.no_grad()
    def restore(self) -> None:
        """Give each buffer the value that it had at the last `take`. A buffer whose tensor the model has
        replaced since gets its old tensor back."""
        for slot in self._slots.values():
            if slot.live is None or slot.copy is None:
                continue
            if getattr(slot.module, slot.name) is not slot.live:
                setattr(slot.module, slot.name, slot.live)
            if not slot.is_unchanged(slot.live):
                slot.live.copy_(slot.copy)
                slot.version = tensor_version(slot.live)
