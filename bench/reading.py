"""Measures how fast a trainer reads a folder of images with `workers`, beside torch's `DataLoader` with as many.

    python bench/reading.py [--images 1200] [--workers 2] [--rounds 7]

Both train the same small model, so that reading is what takes time. An image is a file of 96 x 96 x 3 bytes,
compressed by zlib; it is decompressed, cropped and mirrored at random, and normalised. Prints samples per second,
the median of alternating rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import zlib
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

from oakum_client.cli import output
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task

_SIDE, _CROP, _BATCH = 96, 80, 32


class ImageFolder(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The images of a folder, in the order of their names, each with a target."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        data = bytearray(zlib.decompress(self._files[index].read_bytes()))
        image = torch.frombuffer(data, dtype=torch.uint8).view(3, _SIDE, _SIDE)
        top, left = torch.randint(_SIDE - _CROP, (2,)).tolist()
        image = image[:, top : top + _CROP, left : left + _CROP].float().div_(255).sub_(0.5)
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image.contiguous(), image.mean(dim=(1, 2))


def write_images(folder: Path, number: int) -> None:
    """Write `number` random smooth images into the folder."""
    generator = torch.Generator().manual_seed(0)
    for index in range(number):
        coarse = torch.rand(1, 3, 12, 12, generator=generator)
        image = nn.functional.interpolate(coarse, size=(_SIDE, _SIDE), mode="bilinear")
        pixels = bytes(image.mul(255).to(torch.uint8).flatten().tolist())
        (folder / f"{index:06d}.z").write_bytes(zlib.compress(pixels))


def _build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(75, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return mse_loss(model(batch[0]), batch[1])


def plain(folder: Path, workers: int) -> float:
    """Samples per second of an epoch with torch's own loader, from its first batch on."""
    data = ImageFolder(folder)
    model, optimizer = _build()
    batches = iter(DataLoader(data, _BATCH, shuffle=True, num_workers=workers))
    next(batches)  # the processes have been forked
    began_s, read = time.perf_counter(), 0
    for batch in batches:
        optimizer.zero_grad()
        _loss(model, batch).backward()
        optimizer.step()
        read += len(batch[0])
    return read / (time.perf_counter() - began_s)


def ours(folder: Path, workers: int) -> float:
    """Samples per second of an epoch of a trainer, from its first step on."""
    model, optimizer = _build()
    task = Task(model=model, dataset=ImageFolder(folder), loss=_loss, optimizer=optimizer)
    fields = {"name": "images", "entrypoint": "images:task", "global_batch": _BATCH, "epochs": 1}
    loop = TrainingLoop(task, TrainerSpec.model_validate({**fields, "workers": workers}))
    loop.step()
    began_s, before = time.perf_counter(), loop.progress.samples
    while not loop.finished:
        loop.step()
    return (loop.progress.samples - before) / (time.perf_counter() - began_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, options.images)
        rates: dict[str, list[float]] = {"in the rank (workers: 0)": [], "ours": [], "DataLoader": []}
        for _ in track(range(options.rounds), "Rounds", console=Console(stderr=True), transient=True):
            rates["in the rank (workers: 0)"].append(ours(folder, 0))
            rates["ours"].append(ours(folder, options.workers))
            rates["DataLoader"].append(plain(folder, options.workers))
    table = Table("reader", "samples/s", "beside DataLoader")
    for reader, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, rates["DataLoader"], strict=True))
        table.add_row(reader, f"{statistics.median(found):.0f}", f"{ratio:.2f}")
    output.console().print(table)


if __name__ == "__main__":
    main()
