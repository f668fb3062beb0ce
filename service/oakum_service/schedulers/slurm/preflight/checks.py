"""All checks, in the order in which an admin would fix what they find."""

from __future__ import annotations

import os
import pwd
import time

from oakum_service.config import Settings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
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
from oakum_service.schedulers.slurm.unread import counted


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
    findings = [*judge(facts, settings, user), _state(settings), *database.check(settings)]
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


def _state(settings: Settings) -> PreflightFinding:
    """A finding: whether the cluster's state can be read in the way in which the service will read it."""
    if settings.slurm.state == "push":
        return note("state", "pushed by `oakum collect`, which says itself what it cannot read")
    began_s = time.monotonic()
    try:
        state = open_source(settings.slurm).read()
    except SchedulerError as failure:
        change = ""
        if settings.slurm.state == "rest":
            change = "OAKUM_SLURM_REST_URL, and a new JWT: scontrol token username=... lifespan=..."
        return error("state", str(failure), change)
    took_s = time.monotonic() - began_s
    found = f"{len(state.nodes)} nodes, {len(state.jobs)} jobs by {settings.slurm.state} in {took_s:.2f} s"
    if state.unread:
        found += f", of which {counted(state.unread)} could not be understood: {state.unread[0].why}"
        return warning("state", found, "the rest is used; tell Oakum's makers the line and the version of Slurm")
    return ok("state", found)
