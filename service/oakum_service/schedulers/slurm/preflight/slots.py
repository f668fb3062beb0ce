"""Checks whether nodes can be given in parts, and what could then hurt the jobs beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.partition import whole_nodes_by
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning
from oakum_solver.logs.node_lists import fold

_SUBJECT = "slots"


def check(facts: SiteFacts, settings: SlurmSettings) -> list[PreflightFinding]:
    """Check what a fragment gets, a node or a GPU; nothing where the cluster has no GPUs."""
    if "gpu" not in facts.value("GresTypes").split(","):
        return []
    whole = whole_nodes_by(facts.partitions.get(settings.partition, {}))
    if settings.slots == "gpu":
        return [*_of_gpus(facts, settings.partition, whole)]
    if whole:
        return [ok(_SUBJECT, f"fragments have whole nodes, as all jobs of {settings.partition} ({whole})")]
    found = "fragments have whole nodes, so GPUs that jobs leave on a node stay idle"
    return [note(_SUBJECT, found, "OAKUM_SLURM_SLOTS=gpu where foreground jobs share nodes: see docs/gpus.md")]


def _of_gpus(facts: SiteFacts, partition: str, whole: str) -> Iterator[PreflightFinding]:
    if whole:
        found = f"fragments have whole nodes, not single GPUs, as all jobs of {partition} ({whole})"
        yield note(_SUBJECT, found, f"slurm.conf: PartitionName={partition} ... without {whole}")
        return
    if not facts.value("SelectType").endswith("cons_tres"):
        found = f"SelectType is {facts.value('SelectType')}, which gives no single GPUs"
        yield error(_SUBJECT, found, "slurm.conf: SelectType=select/cons_tres, or OAKUM_SLURM_SLOTS=node")
        return
    yield ok(_SUBJECT, "a fragment has one GPU, with its share of the node's cores and memory")
    yield from _given_whole(facts, partition)
    yield from _shared(facts)


def _given_whole(facts: SiteFacts, partition: str) -> Iterator[PreflightFinding]:
    """The other partitions in which each job gets whole nodes, if nodes of ours are in no further ones."""
    by_option = {name: whole for name, options in facts.partitions.items() if (whole := whole_nodes_by(options))}
    shared: set[str] = set()
    for name, options in facts.partitions.items():
        if name != partition and name not in by_option:
            shared |= _nodes(options)
    ours = _nodes(facts.partitions.get(partition, {}))
    for name, whole in by_option.items():
        nodes = (_nodes(facts.partitions[name]) & ours) - shared
        if nodes:
            found = f"a fragment has all of {fold(nodes)}, where jobs are of {name} ({whole})"
            yield note(_SUBJECT, found, f"slurm.conf: PartitionName={name} ... without {whole}, for single GPUs")


def _nodes(options: Mapping[str, str]) -> set[str]:
    nodes = options.get("Nodes", "")
    try:
        return set() if nodes == "(null)" else set(unfold(nodes))
    except SchedulerError:  # which the check of priorities tells
        return set()


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
