"""What fills the GPUs that foreground jobs leave: two trainers, or jobs that sleep."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oakum_worker.spec import TrainerSpec
from running_service import small_spec, train_side_by_side
from shared_nodes.jobs import MEMORY_MB
from slurm_service import SlurmService
from slurm_site import SlurmSite

TRAINERS = ("first", "second")
_START_TIMEOUT_S = 900.0
_SLEEP = "#!/bin/sh\nexec srun sleep 1800\n"
"""Slurm tells job steps to go, and lets the script itself run on until the grace is over."""


def trainer_spec(name: str, folder: Path, step_s: float, most: int) -> TrainerSpec:
    """A trainer without an end on at most so many GPUs, whose ranks write down each step in `folder`."""
    recorded = {"folder": str(folder / f"records-{name}"), "step_s": step_s}
    return small_spec(name, entrypoint="recording_task:task", arguments=recorded, epochs=1_000_000, max_nodes=most)


@contextmanager
def trainers(
    site: SlurmSite, folder: Path, num_gpus: int, step_s: float, grace_s: float
) -> Iterator[SlurmService]:
    """A service whose two trainers train on all GPUs; `grace_s` is the longest time of a last replica's
    checkpoint."""
    # Steps that sleep are no faster on more GPUs, which would be learnt.
    settings = {"OAKUM_SLURM_SLOTS": "gpu", "OAKUM_SLURM_GRACE_S": str(grace_s), "OAKUM_LEARN_CURVES": "false"}
    service = SlurmService(folder, site, **settings)
    try:
        client = service.start()
        half = num_gpus // 2
        specs = [trainer_spec(name, folder, step_s, half) for name in TRAINERS]
        train_side_by_side(client, specs, half, _START_TIMEOUT_S)
        yield service
    finally:
        site.cancel_all()
        service.end()


@contextmanager
def sleepers(site: SlurmSite, num_gpus: int) -> Iterator[None]:
    """Keeps a `sleep` job of one GPU, which ends as soon as it is told to, on each GPU that no foreground job has
    or waits for."""
    over = threading.Event()

    def fill() -> None:
        options = ("--partition=fill", "--gres=gpu:1", "--cpus-per-task=1", f"--mem={MEMORY_MB}", "--time=30")
        while not over.wait(0.5):
            free = num_gpus - _gpus_in_use(site)
            if free > 0 and not site.run("squeue", "--noheader", "--states=PENDING"):
                array = f"--array=0-{free - 1}"
                site.attempt(
                    "sbatch",
                    *options,
                    "--output=/dev/null",
                    "--chdir=/",
                    array,
                    given=_SLEEP,
                )

    thread = threading.Thread(target=fill, name="sleepers")
    thread.start()
    try:
        site.wait_until("all GPUs are taken", lambda: _gpus_in_use(site) == num_gpus)
        yield
    finally:
        over.set()
        thread.join()
        site.cancel_all()


def _gpus_in_use(site: SlurmSite) -> int:
    """How many GPUs running and completing jobs have."""
    shown = site.run("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--format=%D %b")
    counts = (line.split() for line in shown.splitlines())
    return sum(int(nodes) * int(gres.rpartition(":")[2]) for nodes, gres in counts)
