"""While a real Slurm hands nodes of ours to a foreground job, nothing is launched."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fragment_configs import fragment_config
from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import Snapshot
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.handover import window_s
from oakum_service.schedulers.slurm.reading.sources import open_source
from oakum_service.schedulers.slurm.scheduler import SlurmScheduler
from oakum_service.schedulers.slurm.snapshot import OakumInstance
from oakum_service.states import NodeState
from slurm_site import SlurmSite

_WINDOW_S = 100.0
"""Longer than Slurm's: a slow machine may take as long to let the test look."""
_LEAVES_AT_ONCE = "trap 'exit 0' TERM; sleep 600 & wait"
_LEAVES_WHEN_LET = "trap : TERM; sleep 600 & wait; until test -e {}; do sleep 0.1; done"
"""Slurm signals one process after the other: the shell may see its child end before it is signalled itself."""


@pytest.fixture
def instance() -> OakumInstance:
    """An instance of Oakum with a new name, since Slurm remembers the jobs of earlier tests."""
    return OakumInstance(getpass.getuser(), secrets.token_hex(4))


@pytest.fixture
def begin(
    slurm: SlurmSite, instance: OakumInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], dict[str, SlurmScheduler]]]:
    """Begins to watch the real cluster, reading it all the time, in each format."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    made: dict[str, SlurmScheduler] = {}

    def begin() -> dict[str, SlurmScheduler]:
        for format in ("json", "text"):
            given = {"partition": "fill", "poll_floor_s": 0.2, "hook_floor_s": 0.2, "format": format}
            settings = SlurmSettings.model_validate(given)
            source, commands = open_source(settings), SlurmCommands(settings)
            (tmp_path / format).mkdir()
            scheduler = SlurmScheduler(settings, tmp_path / format, instance, source, commands, 10.0, _WINDOW_S)
            made[format] = scheduler
            scheduler.start(lambda: None)
        return made

    yield begin
    for scheduler in made.values():
        scheduler.stop()


def fill(slurm: SlurmSite, instance: OakumInstance, *commands: str) -> list[str]:
    """A job of ours on each node, as fragments are; returns their ids."""
    jobs = [
        slurm.submit("fill", command, name=instance.job_name(f"f{number}"))
        for number, command in enumerate(commands)
    ]
    # Beside the occupant of the other nodes; and so what they do at SIGTERM is set.
    slurm.wait_for_steps("sleep", len(jobs) + 1)
    return jobs


def launchable(snapshot: Snapshot) -> set[str]:
    """The nodes that a plan would launch fragments on."""
    ours = {job.node for job in snapshot.own_jobs}
    return {node.name for node in snapshot.nodes if node.state is NodeState.HOLE} - ours


def test_nothing_is_launched_from_a_preemption_to_the_start_of_the_job_that_it_is_for(
    slurm: SlurmSite,
    instance: OakumInstance,
    begin: Callable[[], dict[str, SlurmScheduler]],
    tmp_path: Path,
) -> None:
    """Of four nodes one is idle, two fragments leave at once, one takes its time: three nodes look idle long
    before the job starts, and whatever began there would keep it waiting until Slurm preempts again, much
    later."""
    slurm.set_grace(60)
    gate = tmp_path / "leave"
    slurm.occupy(4)
    schedulers = begin()
    fill(slurm, instance, *[_LEAVES_AT_ONCE] * 2, _LEAVES_WHEN_LET.format(gate))
    for format, scheduler in schedulers.items():
        slurm.wait_until(
            f"one node is idle by {format}",
            lambda scheduler=scheduler: launchable(scheduler.snapshot()) == {"n008"},  # type: ignore[misc]
        )
    job = slurm.submit_foreground(nodes=4, run_s=600.0)
    for format, scheduler in schedulers.items():
        slurm.wait_until(
            f"ours are told to go by {format}",
            lambda scheduler=scheduler: scheduler.snapshot().preempted,  # type: ignore[misc]
        )

    def kept(scheduler: SlurmScheduler) -> set[str]:
        snapshot = scheduler.snapshot()
        assert launchable(snapshot) == set()
        return {node.name for node in snapshot.nodes if node.state is NodeState.UNAVAILABLE}

    for format, scheduler in schedulers.items():
        slurm.wait_until(
            f"three nodes are kept by {format}: {{}}",
            lambda scheduler=scheduler: kept(scheduler) >= {"n005", "n006", "n008"},  # type: ignore[misc]
            now=lambda scheduler=scheduler: (  # type: ignore[misc]
                f"{sorted(kept(scheduler))} are; {slurm.node_states()}; {slurm.jobs()}"
            ),
        )
        with pytest.raises(SchedulerError, match="n008 is not idle any more"):
            scheduler.submit(fragment_config(tmp_path / format, "n008", "f8"))
    gate.touch()
    slurm.wait_until(
        "the job starts",
        lambda: not any(kept(each) for each in schedulers.values()) and slurm.state_of(job) == "RUNNING",
    )
    slurm.run("scancel", job)
    row = slurm.wait_for_sacct(job)
    assert row.submit is not None
    assert row.start is not None
    assert row.start - row.submit < window_s(SlurmCommands(SlurmSettings()))
    slurm.wait_until(
        "all nodes are idle again",
        lambda: [len(launchable(each.snapshot())) for each in schedulers.values()] == [4, 4],
    )


@pytest.mark.parametrize("grace_s", [0, 10], ids=["killed at once", "left within its grace"])
def test_slurm_remembers_whom_it_has_preempted_also_for_a_service_that_was_not_there(
    slurm: SlurmSite, instance: OakumInstance, begin: Callable[[], dict[str, SlurmScheduler]], grace_s: int
) -> None:
    slurm.set_grace(grace_s)
    slurm.occupy(5)
    ours = fill(slurm, instance, *[_LEAVES_AT_ONCE] * 3)
    slurm.run("scancel", ours[0])
    job = slurm.submit_foreground(nodes=3, run_s=0.1)
    slurm.wait_for_end(job)
    for format, scheduler in begin().items():
        assert scheduler.snapshot().preempted == {"f1", "f2"}, format
