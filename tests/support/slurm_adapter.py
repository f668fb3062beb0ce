"""The Slurm adapter over a state that the test sets, with fake commands that record their calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fragment_configs import fragment_config
from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import Snapshot
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState
from oakum_service.schedulers.slurm.scheduler import SlurmScheduler
from oakum_service.schedulers.slurm.snapshot import OakumInstance
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.spec_options import SlurmSpec
from waiting import wait_until

INSTANCE = OakumInstance("oakum", "ab12")
HAND_OVER_S = 3600.0
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >> {folder}/$(basename "$0").calls
for last; do :; done
[ -f "$last" ] && cp "$last" {folder}/script
{answer}
"""


@dataclass
class FakeSource:
    """A `StateSource` that returns the state that the test has set, and counts the reads."""

    nodes: tuple[SlurmNode, ...] = ()
    jobs: tuple[SlurmJob, ...] = ()
    reservations: tuple[SlurmReservation, ...] = ()
    error: Exception | None = None
    reads: int = 0
    pings: int = 0
    on_read: Callable[[], None] = field(default=lambda: None)

    def read(self) -> SlurmState:
        taken_at = time.time()
        self.reads += 1
        self.on_read()
        if self.error is not None:
            raise self.error
        return SlurmState(taken_at, "22.05.8", self.nodes, self.jobs, self.reservations)

    def ping(self) -> None:
        self.pings += 1
        if self.error is not None:
            raise self.error

    def cycle_s(self) -> float | None:
        return None


@dataclass
class Site:
    """The adapter with its fake source and commands."""

    folder: Path
    source: FakeSource
    scheduler: SlurmScheduler

    def calls(self, command: str) -> list[str]:
        file = self.folder / f"{command}.calls"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def script_options(self) -> dict[str, str]:
        """The #SBATCH options of the newest job script."""
        lines = (self.folder / "script").read_text(encoding="utf-8").splitlines()
        pairs = [line.removeprefix("#SBATCH --").partition("=") for line in lines if line.startswith("#SBATCH --")]
        return {name: value for name, _, value in pairs}

    def restarted(self) -> SlurmScheduler:
        """Stop the adapter; returns a new one over the same state and files."""
        self.scheduler.stop()
        self.scheduler = adapter(self.folder, self.source)
        self.scheduler.start(lambda: None)
        return self.scheduler

    def picture(self, wanted: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait for a snapshot that satisfies the condition, and return it."""
        return wait_until("the picture is as wanted", lambda: (s := self.scheduler.snapshot()) and wanted(s) and s)

    def config(self, node: str = "n1", fragment: str = "f1", **slurm: str) -> FragmentConfig:
        """The config of a fragment, whose spec asks Slurm for these names."""
        made = fragment_config(self.folder, node, fragment)
        spec = made.spec.model_copy(update={"slurm": SlurmSpec(**slurm)})
        return made.model_copy(update={"spec": spec})


def node(name: str, *states: str, features: tuple[str, ...] = ()) -> SlurmNode:
    return SlurmNode(name, name, states or ("IDLE",), ("fill",), features=features)


def own(number: int, fragment: str, *states: str, nodes: str = "", submitted_at: float | None = None) -> SlurmJob:
    return SlurmJob(
        id=number,
        name=INSTANCE.job_name(fragment),
        user="oakum",
        partition="fill",
        states=states or ("RUNNING",),
        nodes=nodes,
        submitted_at=submitted_at,
    )


def adapter(folder: Path, source: FakeSource, **changes: object) -> SlurmScheduler:
    given = {
        "partition": "fill",
        "poll_floor_s": 0.1,
        "hook_floor_s": 0.02,
        "pending_limit_s": 5.0,
        "bin_dir": folder,
    }
    settings = SlurmSettings(**(given | changes))
    return SlurmScheduler(settings, folder, INSTANCE, source, SlurmCommands(settings), 12.0, HAND_OVER_S)


def readable(scheduler: SlurmScheduler) -> Snapshot | None:
    try:
        return scheduler.snapshot()
    except SchedulerError:
        return None


def announced(node: str, in_s: float) -> SlurmJob:
    return SlurmJob(
        id=9,
        name="big",
        user="a",
        partition="main",
        states=("PENDING",),
        planned_nodes=node,
        start_at=time.time() + in_s,
    )


def blocked_readings(site: Site) -> list[str]:
    """Readings fail while the list has anything in it: the picture stays as it is."""
    blocking = ["blocked"]

    def refuse() -> None:
        if blocking:
            raise SchedulerError("no answer for now")

    site.source.on_read = refuse
    return blocking


def make_site(folder: Path, **changes: object) -> Site:
    """Two idle nodes, and an adapter with these settings that has not begun to read."""
    for name, answer in (("sbatch", "echo Submitted batch job 71"), ("scancel", "exit 0")):
        command = folder / name
        command.write_text(FAKE.format(folder=folder, answer=answer), encoding="utf-8")
        command.chmod(0o755)
    source = FakeSource((node("n1"), node("n2")))
    return Site(folder, source, adapter(folder, source, **changes))
