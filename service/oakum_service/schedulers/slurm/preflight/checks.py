"""All checks, in the order in which an admin would fix what they find."""

from __future__ import annotations

import os
import pwd
import time

from oakum_service.config import Settings, SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.preflight import (
    database,
    hooks_run,
    limits,
    node,
    plugins,
    power,
    preemption,
    slots,
)
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts, gather
from oakum_service.schedulers.slurm.preflight.finding import Level, PreflightFinding, error, note, ok, warning
from oakum_service.schedulers.slurm.reading.sources import open_source
from oakum_service.schedulers.slurm.reading.state import SlurmState, Unread
from oakum_service.schedulers.slurm.slots import SlotBook
from oakum_service.schedulers.slurm.snapshot import OakumInstance, to_snapshot
from oakum_service.schedulers.slurm.unread import counted
from oakum_solver.logs.node_lists import fold

_INVALID = "INVALID_REG"
"""Flag of a node that has registered with less than it is configured with."""


def check_cluster(settings: Settings, *, job: bool = True, wait_s: int = 30) -> list[PreflightFinding]:
    """Check the cluster that the settings name.

    Args:
        settings: The service's settings.
        job: Whether to run a job on a node.
        wait_s: Seconds that the job may wait for a node.

    Raises `ConfigurationError` where other accounts may have made the data directory.
    """
    settings.check_data_dir()
    user = _account_name()
    try:
        facts = gather(SlurmCommands(settings.slurm), settings.slurm, user)
    except SchedulerError as failure:
        return [
            error("slurmctld", str(failure), "is SLURM_CONF right, and slurmctld up?"),
            *database.check(settings),
        ]
    findings = [*judge(facts, settings, user), *_state(settings), *database.check(settings)]
    if job and facts.partitions.get(settings.slurm.partition, {}).get("State") == "UP":
        return [*findings, *node.check(settings, wait_s)]
    return [*findings, *hooks_run.check(settings, None)]


def judge(facts: SiteFacts, settings: Settings, user: str) -> list[PreflightFinding]:
    """Findings on what the cluster's configuration means for Oakum."""
    return [
        *plugins.check(facts, settings.slurm, user),
        *limits.check(facts, settings.slurm),
        *preemption.check(facts, settings.slurm),
        *power.check(facts, settings.slurm),
        *slots.check(facts, settings.slurm),
    ]


def has_errors(findings: list[PreflightFinding]) -> bool:
    """Whether a finding is an error, so that Oakum should not run like this."""
    return any(finding.level is Level.ERROR for finding in findings)


def _account_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _state(settings: Settings) -> list[PreflightFinding]:
    """Findings on whether the cluster's state can be read in the way in which the service will read it."""
    if settings.slurm.state == "push":
        return [note("state", "pushed by `oakum collect`, which says itself what it cannot read")]
    began_s = time.monotonic()
    try:
        state = open_source(settings.slurm).read()
        unread = *state.unread, *_unread_gpus(state, settings.slurm)
    except SchedulerError as failure:
        change = ""
        if settings.slurm.state == "rest":
            change = "OAKUM_SLURM_REST_URL, and a new JWT: scontrol token username=... lifespan=..."
        return [error("state", str(failure), change)]
    took_s = time.monotonic() - began_s
    found = f"{len(state.nodes)} nodes, {len(state.jobs)} jobs by {settings.slurm.state} in {took_s:.2f} s"
    if unread:
        found += f", of which {counted(unread)} could not be understood: {unread[0].why}"
        change = "the rest is used; tell Oakum's makers the line and the version of Slurm"
        return [warning("state", found, change), *_invalid(state, settings.slurm.partition)]
    return [ok("state", found), *_invalid(state, settings.slurm.partition)]


def _invalid(state: SlurmState, partition: str) -> list[PreflightFinding]:
    """A finding on the nodes that Slurm keeps from jobs since they have less than it counts on, such as GPUs."""
    names = [node.name for node in state.nodes if partition in node.partitions and _INVALID in node.states]
    if not names:
        return []
    found = f"{fold(names)}: Slurm starts nothing there, as less was found than slurm.conf says ({_INVALID})"
    return [warning("nodes", found, "`scontrol show node` has the reason: mend the node, gres.conf or slurm.conf")]


def _unread_gpus(state: SlurmState, settings: SlurmSettings) -> list[Unread]:
    """The nodes whose GPUs cannot be read, or of which jobs have more than there are. Raises `SchedulerError` for
    unreadable node lists."""
    book = SlotBook()
    policy = HolePolicy(settings.partition, parts_are_holes=settings.slots == "gpu")
    to_snapshot(state, OakumInstance("", ""), policy, {}, book=book)
    return [*book.unread_nodes()]
