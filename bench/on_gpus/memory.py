"""The largest micro-batch that Oakum finds, beside the largest that plain torch trains on without running out."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

from oakum_worker.profiling.micro_batch import largest_that_fits
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from on_gpus.models import build, loss, samples

_SIZES = [1 << power for power in range(12)]


def main(device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Largest micro-batches among powers of two, within a limit on memory."""
    limit_bytes = (64 << 20) if tiny else (8 << 30)
    sizes = _SIZES[:6] if tiny else _SIZES
    found, probes = _search(sizes, limit_bytes, device, tiny=tiny)
    real = None
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        real = largest_that_fits(sizes, lambda size: _trains(size, device, tiny=tiny))
    return {"limit_bytes": limit_bytes, "found": found, "probes": probes, "real": real}


def _search(sizes: list[int], limit_bytes: int, device: torch.device, *, tiny: bool) -> tuple[int | None, int]:
    """Oakum's answer, and how many measurements it has taken."""
    model = build("transformer", tiny=tiny).to(device)
    task = Task(
        model=model,
        dataset=samples("transformer", sizes[-1], tiny=tiny),
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters()),
    )
    spec = TrainerSpec(name="memory", entrypoint="a:b", global_batch=sizes[-1], epochs=1)
    probe = Probe(task, spec, limit_bytes)
    return largest_that_fits(sizes, lambda size: probe.footprint(size) is not None), probe.num_probes


def _trains(size: int, device: torch.device, *, tiny: bool) -> bool:
    """Whether plain torch takes two steps on `size` samples. The process's limit is the one of the search."""
    model = build("transformer", tiny=tiny).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = next(iter(DataLoader(samples("transformer", size, tiny=tiny), size)))
    try:
        for _ in range(2):
            optimizer.zero_grad()
            torch.autograd.backward(loss(model, (inputs, targets)))
            optimizer.step()
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        del model, optimizer
        gc.collect()
        torch.cuda.empty_cache()
    return True


if __name__ == "__main__":
    print(json.dumps(main(torch.device(sys.argv[1]), tiny=sys.argv[2] == "tiny")))
