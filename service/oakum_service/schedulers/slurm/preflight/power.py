"""Checks what Slurm's power saving means for our fragments."""

from __future__ import annotations

import math

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.configuration import seconds
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, note, ok, warning


def check(facts: SiteFacts, settings: SlurmSettings) -> list[PreflightFinding]:
    """Check what happens to nodes that Slurm powers down; nothing where it powers none down."""
    partition = facts.partitions.get(settings.partition, {})
    after_s = seconds(partition.get("SuspendTime", "")) or seconds(facts.value("SuspendTime"))
    if not facts.value("SuspendProgram") or not after_s or after_s == math.inf:
        return []
    if not settings.powered_down_are_holes:
        found = f"nodes are powered down when idle for {after_s:.0f} s, and are no holes then"
        change = "OAKUM_SLURM_POWERED_DOWN_ARE_HOLES=true, and Slurm starts them for fragments, or leave it so"
        return [note("power saving", found, change)]
    starts_s = seconds(facts.value("ResumeTimeout")) or 60.0
    if starts_s >= settings.shortest_s:
        found = f"a node may take {starts_s:.0f} s to start (ResumeTimeout), and fragments go where they have less"
        return [warning("power saving", found, f"OAKUM_SLURM_SHORTEST_S={starts_s + 120:.0f}")]
    return [ok("power saving", f"Slurm starts nodes for fragments, within {starts_s:.0f} s")]
