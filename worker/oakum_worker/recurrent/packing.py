"""Copies of weights in the order in which the loops read them, kept as long as the weights do not change.

A copy is in large pages: a step reads all weights once, and with pages of 4 KiB a good part of its time would go
into looking addresses up, above all in virtual machines.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from oakum_worker.recurrent.kernels import Kernels
from oakum_worker.torch_internals import tensor_version

_LARGE_PAGE = 2 << 20
_SAMPLES = 64


@dataclass
class _PackedWeights:
    state: tuple[int, ...]  # the weights' version, address and gates when they were copied
    numbers: torch.Tensor


_copies: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def packed(
    kernels: Kernels, weights: torch.Tensor, gates: int, hidden: int, threads: int, *, again: bool = False
) -> torch.Tensor:
    """A copy of the weights, shape (gates * hidden, length), in the order in which the loops read them: [tile of
    units][length][gate][lane].

    The copy is kept for later calls. It is made again if `again`, if torch has counted a change of the weights, if
    they have moved, or if one of 64 sampled weights differs from its copy. So a change through `.data`, which
    torch does not count, can be missed if it concerns a few weights.
    """
    plain = weights if weights.is_contiguous() else weights.detach().contiguous()
    lanes = kernels.lanes(weights.dtype)
    size = -(-hidden // lanes) * lanes * gates * weights.shape[1]
    kept = _copies.get(weights)
    if kept is None or kept.numbers.numel() != size or kept.numbers.dtype != weights.dtype:
        kept = _PackedWeights((), in_large_pages(size, weights.dtype))
    state = (0 if weights.is_inference() else tensor_version(weights), weights.data_ptr(), gates)
    is_known = state == kept.state and kernels.resembles(plain, kept.numbers, gates, hidden, _SAMPLES)
    if again or not is_known:
        kernels.pack(plain, kept.numbers, gates, hidden, threads)
        kept.state = state
        _copies[weights] = kept
    return kept.numbers


def forget() -> None:
    """Drop all kept copies of weights. To be called before inference if a few weights were changed through
    `.data`."""
    _copies.clear()


def in_large_pages(size: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of `size` zeros whose memory begins at a large page, where it fills at least one."""
    num_bytes = size * dtype.itemsize
    if num_bytes < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % _LARGE_PAGE
    return whole[begin : begin + num_bytes].view(dtype)
