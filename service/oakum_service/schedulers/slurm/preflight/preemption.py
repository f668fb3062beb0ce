"""Checks whether foreground jobs get nodes back from us at once, and how long our fragments have to leave."""

from __future__ import annotations

from collections.abc import Mapping

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.configuration import seconds
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.partition import has_one_user
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning

SHORT_GRACE_S = 10.0
"""A grace below this is too short: a fragment leaves within 2 s, but one that holds its trainer's last copy
writes a checkpoint first."""
_PLUGINS = {"partition": "preempt/partition_prio", "qos": "preempt/qos"}
_SETTING_OF = {plugin: setting for setting, plugin in _PLUGINS.items()}
_LOOKS_EVERY_S = 30
"""Seconds between slurmctld's searches for jobs whose grace has ended."""
_LONG_HANG_S = 120.0
_HIGHEST_TIER = 65533
"""The greatest PriorityTier of a partition: there is none above it."""


def check(facts: SiteFacts, settings: SlurmSettings) -> list[PreflightFinding]:
    """Check everything about preemption; nothing if our partition does not exist. Returns the findings."""
    partition = facts.partitions.get(settings.partition)
    if partition is None:
        return []
    if settings.preemption == "none":
        return [_no_preemption(facts), *_other_partitions(facts, settings, partition)]
    plugin = _plugin(facts, settings)
    if settings.preemption == "qos":
        taken, line = _qos(facts, settings)
    else:
        taken = [_mode(partition.get("PreemptMode", ""), _partition_line(settings, "PreemptMode=CANCEL"))]
        line = (partition.get("GraceTime", ""), _partition_line(settings, "GraceTime=60"))
    return [
        plugin,
        *taken,
        *([_grace(*line, settings)] if line is not None else []),
        _exemption(facts),
        *_exempt_priority(facts),
        _memory(facts),
        *_blocked(facts, settings, partition),
        *_other_partitions(facts, settings, partition),
        *([_hanging(facts, line[0])] if line is not None else []),
    ]


def _partition_line(settings: SlurmSettings, option: str) -> str:
    return f"slurm.conf: PartitionName={settings.partition} ... {option}"


def _no_preemption(facts: SiteFacts) -> PreflightFinding:
    plugin = facts.value("PreemptType")
    if plugin in _SETTING_OF:
        change = f"OAKUM_SLURM_PREEMPTION={_SETTING_OF[plugin]}"
        return note("PreemptType", f"{plugin}, which OAKUM_SLURM_PREEMPTION=none leaves unused", change)
    found = "none: a foreground job that nobody expected waits until a fragment's time limit"
    return warning("PreemptType", found, "slurm.conf: PreemptType=preempt/partition_prio")


def _plugin(facts: SiteFacts, settings: SlurmSettings) -> PreflightFinding:
    plugin, wanted = facts.value("PreemptType"), _PLUGINS[settings.preemption]
    if plugin == wanted:
        return ok("PreemptType", plugin)
    change = f"slurm.conf: PreemptType={wanted}"
    if plugin in _SETTING_OF:
        change += f", or OAKUM_SLURM_PREEMPTION={_SETTING_OF[plugin]}"
    found = f"{plugin}, but OAKUM_SLURM_PREEMPTION={settings.preemption}: foreground jobs would wait for us"
    return error("PreemptType", found, change)


def _qos(facts: SiteFacts, settings: SlurmSettings) -> tuple[list[PreflightFinding], tuple[str, str] | None]:
    if facts.qos is None:
        return [error("QOS", f"unknown: {facts.unanswered.get('sacctmgr', 'there is no accounting')}")], None
    name = settings.qos or ""
    if name not in facts.qos:
        given = f"there is no QOS {name!r}" if name else "OAKUM_SLURM_QOS is not set"
        return [error("QOS", given, f"sacctmgr add qos {name or 'fill'}; OAKUM_SLURM_QOS={name or 'fill'}")], None
    row = facts.qos[name]
    preemptors = sorted(other for other, its in facts.qos.items() if name in its["Preempt"].split(","))
    mode = row["PreemptMode"]
    effective = facts.value("PreemptMode") if mode in ("", "cluster") else mode
    findings = [_mode(effective, f"sacctmgr modify qos {name} set PreemptMode=cancel")]
    if preemptors:
        findings.append(ok("QOS", f"{name} gives way to {', '.join(preemptors)}"))
    else:
        findings.append(error("QOS", f"no QOS preempts {name}", f"sacctmgr modify qos normal set Preempt+={name}"))
    exempt = row["PreemptExemptTime"]
    if seconds(exempt):
        change = f"sacctmgr modify qos {name} set PreemptExemptTime=0"
        findings.append(
            error(
                "PreemptExemptTime",
                f"{exempt} for QOS {name}: our fragments keep their nodes for that long",
                change,
            )
        )
    findings += [_allowed_qos(facts.qos, name, other) for other in settings.allow_qos if other != name]
    return findings, (row["GraceTime"], f"sacctmgr modify qos {name} set GraceTime=60")


def _allowed_qos(qos: Mapping[str, Mapping[str, str]], ours: str, name: str) -> PreflightFinding:
    """A finding: whether foreground jobs take nodes back from jobs of this QOS, which specs may ask for, as they
    do from those of our own."""
    if name not in qos:
        found = f"there is no QOS {name!r}, which OAKUM_SLURM_ALLOW_QOS allows"
        return error("QOS", found, f"sacctmgr add qos {name}, or OAKUM_SLURM_ALLOW_QOS without it")
    preemptors = [other for other, its in qos.items() if name in its["Preempt"].split(",")]
    if not preemptors:
        found = f"no QOS preempts {name}, which OAKUM_SLURM_ALLOW_QOS allows"
        return error("QOS", found, f"sacctmgr modify qos normal set Preempt+={name}")
    for option in ("GraceTime", "PreemptMode", "PreemptExemptTime"):
        if (given := qos[name][option]) != (wanted := qos[ours][option]):
            found = f"{option} is {given or 'not set'} for {name} and {wanted or 'not set'} for {ours}"
            return warning("QOS", found, f"sacctmgr modify qos {name} set {option}={wanted}")
    return ok("QOS", f"{name} gives way to {', '.join(sorted(preemptors))}, too")


def _mode(mode: str, change: str) -> PreflightFinding:
    words = set(mode.upper().split(","))
    if "CANCEL" in words:
        return ok("PreemptMode", mode)
    if "REQUEUE" in words:
        found = f"{mode}: fragments are submitted with --no-requeue, so that Slurm cannot do that with them"
        return warning("PreemptMode", found, change)
    if "SUSPEND" in words:
        return error("PreemptMode", f"{mode}: a suspended fragment keeps the node's memory and GPUs", change)
    return error("PreemptMode", f"{mode or 'not set'}: our jobs are never preempted, foreground jobs wait", change)


def _grace(given: str, change: str, settings: SlurmSettings) -> PreflightFinding:
    grace_s = seconds(given) or 0.0
    if grace_s == 0:
        found = "0: a preempted fragment is killed at once, and its trainer goes back to its last checkpoint"
        return warning("GraceTime", found, change)
    if grace_s < SHORT_GRACE_S:
        return warning("GraceTime", f"{grace_s:.0f} s: less than 2 s and the time to write a checkpoint", change)
    if settings.grace_s is not None and settings.grace_s > grace_s:
        found = f"{grace_s:.0f} s, but OAKUM_SLURM_GRACE_S={settings.grace_s:g}"
        return error("GraceTime", found, f"{change.replace('=60', f'={settings.grace_s:.0f}')}, or unset it")
    return ok("GraceTime", f"{grace_s:.0f} s from SIGTERM to SIGKILL")


def _exemption(facts: SiteFacts) -> PreflightFinding:
    given = facts.value("PreemptExemptTime")
    if seconds(given):
        found = f"{given}: a fragment is not preempted for that long after its start"
        return error("PreemptExemptTime", found, "slurm.conf: PreemptExemptTime=0")
    return ok("PreemptExemptTime", "0: a fragment gives way as soon as it runs")


def _exempt_priority(facts: SiteFacts) -> list[PreflightFinding]:
    words = facts.value("PreemptParameters").split(",")
    given = next((word.partition("=")[2] for word in words if word.startswith("min_exempt_priority=")), "")
    if not given:
        return []
    found = f"{given}: a fragment whose job has that priority or a higher one keeps its node (`sprio` shows it)"
    change = "slurm.conf: PreemptParameters without min_exempt_priority, or with one above our jobs' priority"
    return [warning("min_exempt_priority", found, change)]


def _memory(facts: SiteFacts) -> PreflightFinding:
    """A finding: whether Slurm remembers which nodes it took from us for at least as long as it preempts nothing
    more for the same job."""
    needed_s = sum(seconds(facts.value(name)) or 0.0 for name in ("KillWait", "MessageTimeout"))
    kept_s = seconds(facts.value("MinJobAge"))
    if kept_s and kept_s < needed_s:  # 0 means for ever
        found = (
            f"{kept_s:.0f} s, less than KillWait + MessageTimeout: a fragment may be launched where a "
            "foreground job waits"
        )
        return warning("MinJobAge", found, f"slurm.conf: MinJobAge={max(needed_s, 300.0):.0f}")
    return ok(
        "MinJobAge", f"{facts.value('MinJobAge')}: Slurm remembers for long enough which jobs it has preempted"
    )


def _blocked(facts: SiteFacts, settings: SlurmSettings, partition: Mapping[str, str]) -> list[PreflightFinding]:
    findings = []
    if has_one_user(partition):
        found = "YES: Slurm preempts no job for one of another user"
        findings.append(error("ExclusiveUser", found, _partition_line(settings, "ExclusiveUser=NO")))
    for name in _of_one_user(facts, settings, partition):
        found = f"YES in {name}: Slurm preempts no job for one of another user, so its nodes are left out"
        findings.append(warning("ExclusiveUser", found, f"slurm.conf: PartitionName={name} ... ExclusiveUser=NO"))
    if partition.get("OverSubscribe", "NO").startswith(("FORCE", "YES")):
        found = f"{partition['OverSubscribe']}: other jobs may share the node of a fragment"
        findings.append(warning("OverSubscribe", found, _partition_line(settings, "OverSubscribe=EXCLUSIVE")))
    labels = facts.value("MCSPlugin")
    if labels not in ("", "mcs/none"):
        found = f"{labels}: Slurm preempts no job for one with another label"
        findings.append(warning("MCSPlugin", found, "slurm.conf: MCSPlugin=mcs/none"))
    return findings


def _of_one_user(facts: SiteFacts, settings: SlurmSettings, partition: Mapping[str, str]) -> list[str]:
    """The other partitions with nodes of ours in which a node has jobs of one user only."""
    others = {name: options for name, options in facts.partitions.items() if name != settings.partition}
    try:
        ours = set(unfold(_nodes(partition)))
        return [
            name
            for name, options in others.items()
            if has_one_user(options) and not ours.isdisjoint(unfold(_nodes(options)))
        ]
    except SchedulerError:  # which is told of PriorityTier
        return []


def _other_partitions(
    facts: SiteFacts, settings: SlurmSettings, partition: Mapping[str, str]
) -> list[PreflightFinding]:
    try:
        ours = set(unfold(_nodes(partition)))
        sharing = {
            name: int(options.get("PriorityTier", "1"))
            for name, options in facts.partitions.items()
            if name != settings.partition and not ours.isdisjoint(unfold(_nodes(options)))
        }
    except SchedulerError as failure:
        return [error("PriorityTier", str(failure))]
    tier = int(partition.get("PriorityTier", "1"))
    if not sharing:
        return [note("PriorityTier", f"no other partition has nodes of {settings.partition}")]
    by_tier = settings.preemption == "partition"
    waiting = sorted(name for name, other in sharing.items() if other < tier or (by_tier and other == tier))
    if waiting:
        found = f"{tier}; the jobs of {', '.join(f'{name} ({sharing[name]})' for name in waiting)} wait for ours"
        change = _above(waiting, tier) if tier < _HIGHEST_TIER else _partition_line(settings, "PriorityTier=1")
        return [(error if by_tier else warning)("PriorityTier", found, change)]
    others = ", ".join(f"{name} {sharing[name]}" for name in sorted(sharing))
    return [ok("PriorityTier", f"{settings.partition} {tier}; with nodes in common: {others}")]


def _nodes(options: Mapping[str, str]) -> str:
    nodes = options.get("Nodes", "")
    return "" if nodes == "(null)" else nodes


def _above(names: list[str], tier: int) -> str:
    return "slurm.conf: " + ", ".join(
        f"PartitionName={name} ... PriorityTier={max(100, tier + 1)}" for name in names
    )


def _hanging(facts: SiteFacts, grace: str) -> PreflightFinding:
    wait_s = seconds(facts.value("KillWait")) or 0.0
    most_s = (seconds(grace) or 0.0) + wait_s + _LOOKS_EVERY_S
    found = f"{wait_s:.0f} s: a fragment that hangs holds its node for {most_s:.0f} s at most"
    return (
        warning("KillWait", found, "slurm.conf: KillWait=30") if most_s > _LONG_HANG_S else ok("KillWait", found)
    )
