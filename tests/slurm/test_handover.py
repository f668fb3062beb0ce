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


@pytest.fixture(params=["json", "text"])
def begin(
    request: pytest.FixtureRequest,
    slurm: SlurmSite,
    instance: OakumInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], SlurmScheduler]]:
    """Begins to watch the real cluster, reading it all the time."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    given = {"partition": "fill", "poll_floor_s": 0.1, "hook_floor_s": 0.1, "format": request.param}
    settings = SlurmSettings.model_validate(given)
    commands = SlurmCommands(settings)
    made: list[SlurmScheduler] = []

    def begin() -> SlurmScheduler:
        source = open_source(settings)
        made.append(SlurmScheduler(settings, tmp_path, instance, source, commands, 10.0, _WINDOW_S))
        made[-1].start(lambda: None)
        return made[-1]

    yield begin
    for scheduler in made:
        scheduler.stop()


def fill(slurm: SlurmSite, instance: OakumInstance, *commands: str) -> list[str]:
    """A job of ours on each node, as fragments are; returns their ids."""
    jobs = [
        slurm.submit("fill", command, name=instance.job_name(f"f{number}"))
        for number, command in enumerate(commands)
    ]
    slurm.wait_for_steps("sleep", len(jobs))  # and so what they do at SIGTERM is set
    return jobs


def launchable(snapshot: Snapshot) -> set[str]:
    """The nodes that a plan would launch fragments on."""
    ours = {job.node for job in snapshot.own_jobs}
    return {node.name for node in snapshot.nodes if node.state is NodeState.HOLE} - ours


def test_nothing_is_launched_from_a_preemption_to_the_start_of_the_job_that_it_is_for(
    slurm: SlurmSite, instance: OakumInstance, begin: Callable[[], SlurmScheduler], tmp_path: Path
) -> None:
    """One node is idle, six fragments leave at once, one takes its time: seven nodes look idle long before the job
    starts, and whatever began there would keep it waiting until Slurm preempts again, much later."""
    slurm.set_grace(60)
    gate = tmp_path / "leave"
    scheduler = begin()
    fill(slurm, instance, *[_LEAVES_AT_ONCE] * 6, _LEAVES_WHEN_LET.format(gate))
    slurm.wait_until("one node is idle", lambda: launchable(scheduler.snapshot()) == {"n008"})
    job = slurm.submit_foreground(nodes=8, run_s=600.0)
    slurm.wait_until("ours are told to go", lambda: scheduler.snapshot().preempted)

    def kept() -> set[str]:
        snapshot = scheduler.snapshot()
        assert launchable(snapshot) == set()
        return {node.name for node in snapshot.nodes if node.state is NodeState.UNAVAILABLE}

    all_others = {f"n00{number}" for number in (1, 2, 3, 4, 5, 6, 8)}
    slurm.wait_until(
        "seven nodes are kept: {}",
        lambda: kept() >= all_others,
        now=lambda: f"{sorted(kept())} are; {slurm.node_states()}; {slurm.jobs()}",
    )
    with pytest.raises(SchedulerError, match="n008 is not idle any more"):
        scheduler.submit(fragment_config(tmp_path, "n008", "f8"))
    gate.touch()
    slurm.wait_until("the job starts", lambda: not kept() and slurm.state_of(job) == "RUNNING")
    slurm.run("scancel", job)
    row = slurm.wait_for_sacct(job)
    assert row.submit is not None
    assert row.start is not None
    assert row.start - row.submit < window_s(SlurmCommands(SlurmSettings()))
    slurm.wait_until("all nodes are idle again", lambda: len(launchable(scheduler.snapshot())) == 8)


@pytest.mark.parametrize("grace_s", [0, 10], ids=["killed at once", "left within its grace"])
def test_slurm_remembers_whom_it_has_preempted_also_for_a_service_that_was_not_there(
    slurm: SlurmSite, instance: OakumInstance, begin: Callable[[], SlurmScheduler], grace_s: int
) -> None:
    slurm.set_grace(grace_s)
    ours = fill(slurm, instance, *[_LEAVES_AT_ONCE] * 8)
    slurm.run("scancel", ours[0])
    job = slurm.submit_foreground(nodes=8, run_s=0.1)
    slurm.wait_for_end(job)
    assert begin().snapshot().preempted == {f"f{number}" for number in range(1, 8)}
