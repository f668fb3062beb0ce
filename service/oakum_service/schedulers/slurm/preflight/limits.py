"""Checks our partition and the limits on what may be submitted there."""

from __future__ import annotations

import math
from collections.abc import Mapping

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.configuration import seconds
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning

_SUBMIT_CAPS = ("MaxSubmitPU", "MaxSubmitPA", "GrpSubmit")


def check(facts: SiteFacts, settings: SlurmSettings) -> list[PreflightFinding]:
    """Check the partition, time limits, caps, and whether Slurm would accept a fragment's job. Returns one
    finding for each check."""
    partition = facts.partitions.get(settings.partition)
    if partition is None:
        return [_missing(facts, settings)]
    findings = [_state(settings, partition), _longest(settings, partition), *_caps(facts, settings, partition)]
    if facts.test_only:
        findings.append(error("submission", facts.test_only))
    else:
        findings.append(ok("submission", "Slurm would take a fragment's job (sbatch --test-only)"))
    return [*findings, _reserve(facts)]


def _missing(facts: SiteFacts, settings: SlurmSettings) -> PreflightFinding:
    change = "slurm.conf: PartitionName=fill Nodes=... PriorityTier=1 PreemptMode=CANCEL GraceTime=60"
    if not settings.partition:
        known = ", ".join(sorted(facts.partitions))
        return error("partition", f"OAKUM_SLURM_PARTITION is not set; there are {known}", change)
    return error("partition", f"there is no partition {settings.partition!r}", change)


def _state(settings: SlurmSettings, partition: Mapping[str, str]) -> PreflightFinding:
    state, name = partition.get("State", ""), settings.partition
    if state != "UP":
        return error("partition", f"{name} is {state}", f"scontrol update PartitionName={name} State=UP")
    return ok("partition", f"{name} is up and has {partition.get('TotalNodes', '?')} nodes")


def _longest(settings: SlurmSettings, partition: Mapping[str, str]) -> PreflightFinding:
    longest_s = seconds(partition.get("MaxTime", "UNLIMITED")) or math.inf
    if settings.longest_s > longest_s:
        return error(
            "MaxTime",
            f"{partition['MaxTime']}, but fragments ask for up to {settings.longest_s:.0f} s",
            f"OAKUM_SLURM_TIME_LIMIT_S={longest_s:.0f}",
        )
    return ok("MaxTime", f"{partition.get('MaxTime', 'UNLIMITED')}: fragments ask for {settings.longest_s:.0f} s")


def _caps(facts: SiteFacts, settings: SlurmSettings, partition: Mapping[str, str]) -> list[PreflightFinding]:
    name = settings.qos or partition.get("QoS", "N/A")
    row = (facts.qos or {}).get(name)
    if row is None:
        return []
    findings = [
        *_submit_cap(name, row, int(partition.get("TotalNodes", "0"))),
        *_longest_of_qos(name, row, settings),
    ]
    if not row["GrpTRES"] and not row["MaxTRESPU"]:
        change = f"sacctmgr modify qos {name} set GrpTRES=node=N"
        findings.append(note("GrpTRES", f"QOS {name} does not cap how many nodes fragments may have", change))
    return findings


def _submit_cap(name: str, row: Mapping[str, str], num_nodes: int) -> list[PreflightFinding]:
    caps = {field: int(row[field]) for field in _SUBMIT_CAPS if row[field].isdigit()}
    change = f"sacctmgr modify qos {name} set MaxSubmitJobsPerUser={2 * num_nodes}"
    if not caps:
        return [
            note("MaxSubmitJobs", f"QOS {name} does not cap how many jobs a fault of ours could submit", change)
        ]
    field, least = min(caps.items(), key=lambda cap: cap[1])
    if least < num_nodes:
        found = f"QOS {name} takes {least} jobs ({field}), fewer than the partition's {num_nodes} nodes"
        return [warning("MaxSubmitJobs", found, change)]
    return [ok("MaxSubmitJobs", f"QOS {name} takes {least} jobs ({field})")]


def _longest_of_qos(name: str, row: Mapping[str, str], settings: SlurmSettings) -> list[PreflightFinding]:
    longest_s = seconds(row["MaxWall"])
    if longest_s is None or longest_s >= settings.longest_s:
        return []
    found = f"QOS {name} allows {row['MaxWall']}, but fragments ask for up to {settings.longest_s:.0f} s"
    return [error("MaxWall", found, f"OAKUM_SLURM_TIME_LIMIT_S={longest_s:.0f}")]


def _reserve(facts: SiteFacts) -> PreflightFinding:
    if "bf_min_prio_reserve" in facts.value("SchedulerParameters"):
        return ok("bf_min_prio_reserve", "set")
    return note(
        "bf_min_prio_reserve",
        "not set: backfill plans nodes for our pending jobs too",
        "slurm.conf: SchedulerParameters=...,bf_min_prio_reserve=P, with P above the priority of our jobs",
    )
