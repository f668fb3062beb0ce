"""Calls of the compiled loops (`loops.cpp`), which are loaded at the first call."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

import torch

from oakum_worker.errors import NoLoopsError
from oakum_worker.recurrent.building import library

_SWITCH = "OAKUM_FUSED_LOOPS"
_OFF = ("0", "false", "no", "off")
_COUNTS = (
    *("steps", "batch", "hidden", "input", "x_stride", "y_stride", "reverse"),
    *("threads", "unit_tiles", "unroll", "tile", "serpentine", "keeps_cells", "first", "last"),
)
_POINTERS = (
    *(
        "batch_sizes",
        "offsets",
        "x",
        "h0",
        "c0",
        "packed_x",
        "packed_h",
        "bias_x",
        "bias_h",
        "y",
        "cells",
        "scratch",
    ),
    *("dy", "dh", "dc", "dgates_x", "dgates_h", "partial"),
)


class LoopArguments(ctypes.Structure):
    """Arguments of one call of the compiled loops: one direction of one layer, forward or backward. `loops.cpp`
    says what each field is."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    ]


@dataclass(frozen=True)
class Kernels:
    """The compiled loops of a loaded library, as Python calls them."""

    loaded: ctypes.CDLL
    vector_bytes: int

    def lanes(self, dtype: torch.dtype) -> int:
        """Number of hidden units of this type that one vector of the processor holds."""
        return self.vector_bytes // dtype.itemsize

    def run(self, arguments: LoopArguments, *, is_lstm: bool, dtype: torch.dtype, back: bool = False) -> None:
        """Compute a forward pass or, with `back`, the steps `first` to `last` (fields of `arguments`) of a
        backward pass. Other Python threads can run meanwhile. Results are written to the tensors that `arguments`
        points to."""
        self.loaded.oakum_run(ctypes.byref(arguments), int(is_lstm), int(dtype == torch.float64), int(back))

    def pack(self, weights: torch.Tensor, packed: torch.Tensor, gates: int, hidden: int, threads: int) -> None:
        """Write weights, (gates * hidden, length) and contiguous, into `packed` in the order of the loops."""
        self.loaded.oakum_pack(
            weights.data_ptr(),
            packed.data_ptr(),
            gates,
            hidden,
            weights.shape[1],
            threads,
            int(weights.dtype == torch.float64),
        )

    def resembles(
        self, weights: torch.Tensor, packed: torch.Tensor, gates: int, hidden: int, samples: int
    ) -> bool:
        """Whether `samples` numbers, spread evenly over `weights`, equal their copies in `packed`."""
        is_alike = self.loaded.oakum_resembles(
            weights.data_ptr(),
            packed.data_ptr(),
            gates,
            hidden,
            weights.shape[1],
            samples,
            int(weights.dtype == torch.float64),
        )
        return bool(is_alike)


@functools.cache
def kernels() -> Kernels | NoLoopsError:
    """The compiled loops, compiled first where needed; or the error that says why they cannot be used here.
    Computed once in a process."""
    if os.environ.get(_SWITCH, "").lower() in _OFF:
        return NoLoopsError(f"{_SWITCH} switches the fused loops off")
    try:
        return _load()
    except NoLoopsError as error:
        return error


def _load() -> Kernels:
    path = library()
    try:
        # torch has loaded its OpenMP library under the name that is needed here, so both use one pool of threads.
        loaded = ctypes.CDLL(str(path))
        loaded.oakum_vector_bytes.restype = loaded.oakum_pass_bytes.restype = ctypes.c_int64
        counts = [ctypes.c_int64] * 4
        loaded.oakum_pack.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *counts, ctypes.c_int]
        loaded.oakum_resembles.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *counts, ctypes.c_int]
        if loaded.oakum_pass_bytes() != ctypes.sizeof(LoopArguments):
            raise NoLoopsError(f"{path} is of another version of Oakum: remove it")
        return Kernels(loaded, loaded.oakum_vector_bytes())
    except (OSError, AttributeError) as error:
        raise NoLoopsError(f"{path} cannot be loaded ({error}): remove it to compile it again") from error
