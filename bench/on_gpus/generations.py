"""Groups of one rank, formed, used, aborted or left, and dropped again and again: what stays behind of each."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.parallel import nccl
from oakum_worker.parallel.broken_groups import let_go_of
from oakum_worker.torch_internals import new_group

_LIMIT = timedelta(seconds=60)


def main(device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Counts after the first tenth of the generations and after the last, and seconds of each generation."""
    times_s, counts = [], []
    number = 10 if tiny else 200
    for generation in range(number):
        began_s = time.perf_counter()
        group = new_group(
            dist.HashStore(), 0, 1, connect_timeout=_LIMIT, timeout=_LIMIT, on_gpus=device.type == "cuda"
        )
        tensor = torch.ones(1 << 10, device=device)
        group.allreduce([tensor]).wait()
        nccl.synchronise(device)
        if generation % 2 and device.type == "cuda":
            for thread in nccl.abort([group]):
                thread.join()
        let_go_of([group])
        del group, tensor
        gc.collect()
        times_s.append(time.perf_counter() - began_s)
        if generation + 1 in (number // 10, number):
            counts.append(_count(device))
    first, last = counts
    return {"generations": number, "most_s": max(times_s), "first": first, "last": last}


def _count(device: torch.device) -> dict[str, int]:
    deadline_s, threads = time.monotonic() + 5.0, -1
    while time.monotonic() < deadline_s and threads != (threads := _threads()):  # dropped ones take their time
        time.sleep(1.0)
    free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
    return {
        "groups": sum(issubclass(type(one), dist.ProcessGroup) for one in gc.get_objects()),
        "threads": threads,
        "open files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 (no paths are needed)
        "device_bytes": total - free,
    }


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    print(json.dumps(main(torch.device(sys.argv[1]), tiny=sys.argv[2] == "tiny")))
