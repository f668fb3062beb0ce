"""Checks whether nodes can be given in parts, and what could then hurt the jobs beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning

_SUBJECT = "slots"
_WHOLE = {"OverSubscribe": "EXCLUSIVE", "ExclusiveTopo": "YES"}
"""Options of a partition with these values have each job get whole nodes."""


def check(facts: SiteFacts, settings: SlurmSettings) -> list[PreflightFinding]:
    """Check what a fragment gets, a node or a GPU; nothing where the cluster has no GPUs."""
    if "gpu" not in facts.value("GresTypes").split(","):
        return []
    partition = facts.partitions.get(settings.partition, {})
    whole = next((f"{name}={value}" for name, value in _WHOLE.items() if partition.get(name) == value), None)
    if settings.slots == "gpu":
        return [*_of_gpus(facts, settings.partition, whole)]
    if whole is not None:
        return [ok(_SUBJECT, f"fragments have whole nodes, as all jobs of {settings.partition} ({whole})")]
    found = "fragments have whole nodes, so GPUs that jobs leave on a node stay idle"
    return [note(_SUBJECT, found, "OAKUM_SLURM_SLOTS=gpu where foreground jobs share nodes: see docs/gpus.md")]


def _of_gpus(facts: SiteFacts, partition: str, whole: str | None) -> Iterator[PreflightFinding]:
    if whole is not None:
        change = f"OAKUM_SLURM_SLOTS=node, or slurm.conf: PartitionName={partition} ... without {whole}"
        yield error(
            _SUBJECT, f"fragments ask for single GPUs, and a job of {partition} gets its node: {whole}", change
        )
        return
    if not facts.value("SelectType").endswith("cons_tres"):
        found = f"SelectType is {facts.value('SelectType')}, which gives no single GPUs"
        yield error(_SUBJECT, found, "slurm.conf: SelectType=select/cons_tres, or OAKUM_SLURM_SLOTS=node")
        return
    yield ok(_SUBJECT, "a fragment has one GPU, with its share of the node's cores and memory")
    yield from _shared(facts)


def _shared(facts: SiteFacts) -> Iterator[PreflightFinding]:
    """What a fragment could take from the jobs beside it."""
    if "MEMORY" not in facts.value("SelectTypeParameters").upper():
        change = "slurm.conf: SelectTypeParameters=CR_Core_Memory, DefMemPerGPU=..."
        yield warning(
            "memory", "Slurm does not share it out, so a fragment may use that of jobs beside it", change
        )
    if _constrains_devices(facts.config) is False:
        change = "cgroup.conf: ConstrainDevices=yes, and slurm.conf: TaskPlugin=task/cgroup,task/affinity"
        yield warning("devices", "nothing keeps a job from another job's GPUs", change)
    if "mps" in facts.value("GresTypes") or "shard" in facts.value("GresTypes"):
        yield note("shards", "jobs may share a GPU by MPS or shards; Oakum counts whole GPUs and MIG slices only")


def _constrains_devices(config: Mapping[str, str]) -> bool | None:
    """Whether jobs see their own devices alone; None where Slurm does not tell."""
    told = config.get("ConstrainDevices", "").strip().lower()
    return told == "yes" if told else None
