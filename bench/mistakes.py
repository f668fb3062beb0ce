"""Measures how soon `oakum try` tells of typical mistakes, and what it says.

    python bench/mistakes.py [--only NAME] [--check-limit 60s] [--json FILE]

Each mistake is made in a temporary folder, in a spec or a task that would train without it, and tried by a
command of its own. No try can see a loss that is NaN after 30 steps: `python -m oakum_worker run` tells of it.
Seconds are those from the command to its end, CPU those of its processes; nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.progress import track

from oakum_client.cli import output

_TASKS = '''
import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from oakum_worker.task import Task

INPUTS = 16


class Data:
    """Random samples, one of which cannot be read if `bad` is its number."""

    def __init__(self, num_samples=20_000, bad=None):
        self.inputs = torch.randn(num_samples, INPUTS, generator=torch.Generator().manual_seed(1))
        self.bad = bad

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"cannot decode image {index}.jpg")
        return self.inputs[index], index % 3


class Endless(Data):
    def __getitem__(self, index):
        while True:
            time.sleep(1)


class OpenedOnce(Data):
    """Reads from a connection that only the process which has opened it can use."""

    def __init__(self):
        super().__init__()
        self.opened_by = os.getpid()

    def __getitem__(self, index):
        if os.getpid() != self.opened_by:
            raise ConnectionError("bad message from the server")
        return super().__getitem__(index)


def mean(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def build(dataset=None, loss=mean, width=32):
    model = nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model=model, dataset=dataset or Data(), loss=loss, optimizer=optimizer)


def good(width=32):
    return build(width=width)


def reduced(how):
    return build(loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction=how))


def raises(number):
    return build(Data(bad=number))


def loader():
    return build(DataLoader(Data(), 4))


def endless():
    return build(Endless())


def opened_once():
    return build(OpenedOnce())


def nan_after(steps):
    task = build()
    taken = []
    task.optimizer.register_step_post_hook(lambda *_: taken.append(1))
    task.loss = lambda model, batch: mean(model, batch) * (math.nan if len(taken) >= steps else 1.0)
    return task
'''
_BATCH, _FLOAT_BYTES = 8192, 4
_GOOD = {"name": "mistaken", "entrypoint": "tasks:good", "global_batch": 8, "epochs": 2, "max_nodes": 4}
_TRY = ("-m", "oakum", "try", "--json")
_RUN = ("-m", "oakum_worker", "run", "--json", "--spec")


@dataclass(frozen=True)
class Mistake:
    """One mistake: what differs from a spec that would train."""

    name: str
    changes: dict[str, Any]
    command: tuple[str, ...] = _TRY


@dataclass(frozen=True)
class Told:
    """What a command said of a mistake."""

    mistake: str
    seconds: float
    """From the command's start to its end."""
    cpu_s: float
    """CPU seconds of all its processes that have ended before it, itself included."""
    message: str
    """Empty where it found nothing."""
    status: int = field(default=0)
    """Exit status."""


def mistakes() -> list[Mistake]:
    """All mistakes, those that are told soonest first."""
    return [
        Mistake("unknown field", {"batch_size": 8}),
        Mistake("unknown module", {"entrypoint": "taks:good"}),
        Mistake("wrong argument", {"arguments": {"widht": 8}}),
        Mistake("loss not reduced", {"entrypoint": "tasks:reduced", "arguments": {"how": "none"}}),
        Mistake("loss not a mean", {"entrypoint": "tasks:reduced", "arguments": {"how": "sum"}}),
        Mistake("data set raises", {"entrypoint": "tasks:raises", "arguments": {"number": 12345}}),
        Mistake("memory", {"global_batch": _BATCH, "max_nodes": 1, "arguments": {"width": _too_wide()}}),
        Mistake("DataLoader", {"entrypoint": "tasks:loader"}),
        Mistake("opened before the fork", {"entrypoint": "tasks:opened_once", "workers": 2}),
        Mistake("endless first batch", {"entrypoint": "tasks:endless"}),
        Mistake("NaN at step 31", {"entrypoint": "tasks:nan_after", "arguments": {"steps": 30}}, _RUN),
    ]


def _too_wide() -> int:
    """Width of a hidden layer of which a batch takes more than this machine's memory: its output, that of tanh,
    and the gradient of one of them."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(1.3 * memory_bytes / (3 * _BATCH * _FLOAT_BYTES))


def told_of(mistake: Mistake, check_limit: str) -> Told:
    """Make the mistake in a temporary folder and run its command there."""
    with tempfile.TemporaryDirectory(prefix="oakum-mistake-") as name:
        folder = Path(name)
        (folder / "tasks.py").write_text(_TASKS)
        spec = folder / "spec.yaml"
        spec.write_text(yaml.safe_dump(_GOOD | mistake.changes))
        command = [sys.executable, *mistake.command, str(spec)]
        if mistake.command == _TRY:
            command += ["--check-limit", check_limit]
        before_s, began_s = _cpu_s(), time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds, cpu_s = time.monotonic() - began_s, _cpu_s() - before_s
        message = _message(done).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    return Told(mistake.name, seconds, cpu_s, message, done.returncode)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _message(done: subprocess.CompletedProcess[str]) -> str:
    """What a person is told: of a try the failure, or that memory is short; else the last line of the errors."""
    try:
        (result,) = json.loads(done.stdout).values()
        found = result["failure"] or result["facts"].get("memory_complaint") or result["left_out"]
        return str(found or "").partition("\n")[0]
    except (ValueError, KeyError, AttributeError, TypeError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def main(
    only: Annotated[list[str] | None, typer.Option(help="Name of a mistake; again for others.")] = None,
    check_limit: Annotated[str, typer.Option(help="Time limit for each check of a try.")] = "60s",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Make each mistake and print seconds, CPU seconds and message."""
    chosen = [mistake for mistake in mistakes() if not only or mistake.name in only]
    if unknown := set(only or ()) - {mistake.name for mistake in chosen}:
        names = ", ".join(mistake.name for mistake in mistakes())
        raise typer.BadParameter(f"there is no mistake {', '.join(sorted(unknown))}; there are: {names}")
    listing = output.table("MISTAKE", "SECONDS", "CPU", "STATUS", "MESSAGE", right=("SECONDS", "CPU"))
    rows = [told_of(mistake, check_limit) for mistake in track(chosen, "making mistakes", transient=True)]
    for row in rows:
        listing.add_row(row.mistake, f"{row.seconds:.1f}", f"{row.cpu_s:.1f}", str(row.status), row.message)
    output.console().print(listing)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=2), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
