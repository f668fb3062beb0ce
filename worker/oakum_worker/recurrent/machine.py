"""The numbers of a processor from which the cost model of the design space predicts times."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Processor:
    """Resources of a processor and its speed, for predicting times: sizes in bytes, rates of one core per cycle or
    second, the latency of a multiply-add in cycles."""

    cores: int
    vector_bytes: int
    registers: int
    l2_bytes: int  # of each core
    l3_bytes: int  # of all cores
    cycles_per_s: float = 3.0e9
    fmas_per_cycle: float = 1.0
    loads_per_cycle: float = 1.0
    fma_latency: float = 4.0  # cycles
    l2_bytes_per_s: float = 90e9
    l3_bytes_per_s: float = 50e9
    memory_bytes_per_s: float = 15e9
    memory_bytes_per_s_of_all: float = 40e9
    barrier_s: float = 0.5e-6


@functools.cache
def this_machine(vector_bytes: int) -> Processor:
    """Description of this machine: cores and caches as found, `vector_bytes` as given, and rates that are typical
    of today's server processors."""
    return Processor(
        cores=len(os.sched_getaffinity(0)),
        vector_bytes=vector_bytes,
        registers=32 if vector_bytes >= 64 else 16,
        l2_bytes=_cache_bytes(2, 1 << 20),
        l3_bytes=_cache_bytes(3, 16 << 20),
    )


def _cache_bytes(level: int, otherwise: int) -> int:
    for index in sorted(_CACHES.glob("index*")):
        try:
            if (index / "level").read_text().strip() == str(level):
                match = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
                return int(match[1]) * _UNITS[match[2]] if match else otherwise
        except OSError:
            continue
    return otherwise
