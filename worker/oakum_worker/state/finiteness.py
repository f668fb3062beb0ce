"""Whether tensors hold infinite values or NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch


def first_not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """Name of the first tensor with an infinite or NaN value; None if there is none. Of a sharded tensor, only
    this rank's rows are checked."""
    local = [(name, _values(tensor)) for name, tensor in tensors if not tensor.is_meta]
    # A sum is finite only if all that is in it is, and is found much faster; of finite values it may overflow.
    if _are_finite([values.sum() for _, values in local]):
        return None
    return next((name for name, values in local if not values.isfinite().all()), None)


def _are_finite(numbers: Sequence[torch.Tensor]) -> bool:
    """Whether all of the numbers (tensors of shape ()) are finite. Waits for a device only once, however many
    numbers there are."""
    if all(number.device.type == "cpu" for number in numbers):
        return all(math.isfinite(number.item()) for number in numbers)
    device = numbers[0].device
    return bool(torch.stack([number.to(device, torch.float32) for number in numbers]).isfinite().all())


def _values(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
