"""Reads what the nodes are whose past the accounting tells: given as a whole, or in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_config
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.partition import ask_partitions, exclusive_among
from oakum_service.schedulers.slurm.reading import text
from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.gres import gpus
from oakum_service.schedulers.slurm.reading.payloads import Origin
from oakum_service.schedulers.slurm.reading.state import SlurmNode
from oakum_service.schedulers.slurm.slot_sweep import Capacity
from oakum_service.schedulers.slurm.slots import SlotBook, gives_parts
from oakum_solver.errors import LogError
from oakum_solver.logs.node_lists import fold

_TRACKED = "AccountingStorageTRES"


@dataclass(frozen=True)
class AccountedNodes:
    """The nodes that a log is about."""

    capacities: Mapping[str, Capacity]
    """Node -> what it has."""
    any_in_parts: bool = False
    """Whether any of them is given in parts."""
    notes: tuple[str, ...] = ()
    """What was left out, as sentences for a person."""

    @property
    def counted(self) -> str:
        """How many nodes there are, and slots where any is given in parts."""
        nodes = f"{len(self.capacities):,} nodes"
        if not self.any_in_parts:
            return nodes
        return f"{nodes} of {sum(one.slots for one in self.capacities.values()):,} slots"


def read_nodes(commands: SlurmCommands, settings: SlurmSettings) -> AccountedNodes:
    """The partition's nodes, or all where none is set, as they are now. Raises `SchedulerError` where Slurm does
    not answer, and `LogError` where it has no such nodes or its accounting does not know of their GPUs."""
    names = _names(commands, settings.partition)
    if settings.slots == "node":
        return AccountedNodes(dict.fromkeys(names, Capacity()))
    answer = commands.run(*_SHOW_NODES)
    parsed = text.read_nodes(answer, Origin(f"`{' '.join(_SHOW_NODES)}`", "text"))
    unread = {one.name: one.why for one in parsed.unread}
    policy = HolePolicy(
        settings.partition,
        parts_are_holes=True,
        is_preempted=settings.preemption != "none",
        exclusive=exclusive_among(ask_partitions(commands)),
    )
    known = {node.name: node for node in parsed.values if node.name not in unread}
    barred = [name for name in names if name in known and policy.bars(known[name])]
    capacities: dict[str, Capacity] = {}
    for name in sorted({*names} - unread.keys() - {*barred}):
        try:
            capacities[name] = _capacity(known.get(name), policy)
        except FieldError as error:
            unread[name] = str(error)
    in_parts = [known[name] for name, capacity in capacities.items() if capacity.share is not None]
    if in_parts:
        _check_tracked(read_config(ask(commands, "scontrol", "show", "config")), in_parts)
    notes = _notes([name for name in names if name in unread], unread, barred)
    return AccountedNodes(capacities, bool(in_parts), tuple(notes))


_SHOW_NODES = ("scontrol", "--all", "--oneliner", "show", "nodes")


def _names(commands: SlurmCommands, partition: str) -> list[str]:
    # sinfo takes one of the two only.
    chosen = f"--partition={partition}" if partition else "--all"
    output = commands.run("sinfo", "--noheader", "--Node", "--format=%N", chosen)
    nodes = sorted({line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()})
    if not nodes:
        raise LogError(f"sinfo shows no node of partition {partition!r}: is OAKUM_SLURM_PARTITION right?")
    return nodes


def _capacity(node: SlurmNode | None, policy: HolePolicy) -> Capacity:
    """What the node has; one of which Slurm tells nothing more is given as a whole. Raises `FieldError` where its
    GPUs cannot be read."""
    if node is None or not gives_parts(node, (), SlotBook(), shared=policy.shares(node)):
        return Capacity()
    return Capacity.in_parts(node)


def _check_tracked(config: Mapping[str, str], nodes: list[SlurmNode]) -> None:
    """Raise `LogError` where the accounting does not keep how many GPUs jobs have on these nodes."""
    told = config.get(_TRACKED, "")
    tracked = {name.strip().lower() for name in told.split(",")}
    types = {f"gres/gpu:{gpu_type}".lower() for node in nodes for gpu_type in gpus("gres", node.gres)}
    if "gres/gpu" not in tracked and not types <= tracked:
        raise LogError(
            f"Slurm's accounting does not keep which jobs have GPUs: {_TRACKED} is {told!r}, expected gres/gpu in "
            f"it. Have slurm.conf say {_TRACKED}=gres/gpu, which counts for jobs from then on; until then "
            "OAKUM_SLURM_SLOTS=node replays whole nodes"
        )


def _notes(names: list[str], unread: Mapping[str, str], barred: list[str]) -> Iterator[str]:
    if names:
        yield f"nodes left out that cannot be read: {fold(names)} ({names[0]}: {unread[names[0]]})"
    if barred:
        yield f"nodes left out of which Slurm gives none back to another user (ExclusiveUser): {fold(barred)}"
