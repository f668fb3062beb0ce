"""Which GPUs of a node that jobs share are idle. Pure.

Slurm tells how many GPUs of a node jobs have, and of each job only what it asked for. GPUs of one type are alike,
so numbers are given to jobs here, and kept from reading to reading: a slot's number is not the GPU's index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from oakum_service.documents.slots import is_part, slot_name, slots_in
from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.gres import gpus
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, Unread

ANY_GPU = "gpu"
"""Type of slots whose GPUs Slurm gives no type."""
_WITH_JOBS = {"ALLOCATED", "MIXED"}


@dataclass(frozen=True)
class SlotShare:
    """What a job for one slot, or for several of a node, asks for."""

    gres: str
    """`gpu:a100:1`."""
    cpus: int
    memory_mb: int


@dataclass(frozen=True)
class SlotUse:
    """What one slot of a node is used for."""

    name: str
    gpu_type: str
    job: SlurmJob | None = None
    """A job that has it, or that keeps it from others by having the node's cores or memory."""
    fragment: str | None = None
    """Our fragment whose live job has it."""
    is_taken: bool = True
    """Whether a job has it, be it one that we may not see."""
    is_open: bool = False
    """Whether a job of ours would get it."""


@dataclass(frozen=True)
class _Kind:
    """The GPUs of one type on a node."""

    gpu_type: str
    numbers: range
    used: int
    drained: int


@dataclass(frozen=True)
class _Occupant:
    """A job that has GPUs of one type on a node."""

    key: str
    count: int
    job: SlurmJob | None
    fragment: str | None = None


@dataclass
class SlotBook:
    """Gives slots to jobs. A job keeps its slots from one reading to the next; a fragment's job takes the one that
    it was submitted for, if it can."""

    planned: Callable[[str], str | None] = lambda _: None
    """The slot that a fragment was submitted for; None where that is not known."""
    unread: dict[str, str] = field(default_factory=dict)
    """Node -> why its GPUs could not be read in this reading."""
    _kept: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """(node, occupant) -> its numbers in the last reading."""
    _present: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def begin_reading(self) -> None:
        """Forget the jobs that the last reading did not show."""
        self._kept, self._present = self._present, {}
        self.unread = {}

    def note_unread(self, node: str, why: str) -> None:
        """Note that the node's GPUs cannot be read."""
        self.unread[node] = why

    def unread_nodes(self) -> Iterator[Unread]:
        """The nodes whose GPUs could not be read in this reading."""
        return (Unread("node", node, f"node {node}: {why}", nodes=node) for node, why in self.unread.items())

    def assign(self, node: str, numbers: range, occupants: Sequence[_Occupant]) -> dict[int, _Occupant]:
        """Number -> the job that has it, for the GPUs of one type on a node."""
        had = {one.key: self._wish(node, one, numbers) for one in occupants}
        taken: dict[int, _Occupant] = {}
        for one in occupants:
            taken |= {number: one for number in had[one.key][: one.count] if number not in taken}
        for one in occupants:
            own = [number for number, holder in taken.items() if holder is one]
            rest = [number for number in numbers if number not in taken]
            taken |= dict.fromkeys(rest[: one.count - len(own)], one)
            self._present[node, one.key] = tuple(number for number in numbers if taken.get(number) is one)
        return taken

    def _wish(self, node: str, occupant: _Occupant, numbers: range) -> tuple[int, ...]:
        """The numbers that the job had, or is to have."""
        kept = self._kept.get((node, occupant.key))
        if kept is not None or occupant.fragment is None:
            return kept or ()
        slot = self.planned(occupant.fragment)
        planned = () if slot is None else slots_in(slot)
        return tuple(number for number in numbers if slot_name(node, number) in planned)


def gives_parts(
    node: SlurmNode, own: Sequence[tuple[str, SlurmJob]], book: SlotBook, *, shared: bool = True
) -> bool:
    """Whether the node is given in parts: it has GPUs that can be counted, jobs share it (`shared`), and none of
    our jobs there, each with its fragment, has the node as a whole, as one that was submitted before nodes were
    shared. One that is shared no more stays in parts until our jobs that have parts have ended. Raises
    `FieldError` where its GPUs cannot be read."""
    if not gpus("gres", node.gres):
        return False
    if not own:
        return shared
    return all(
        gpus("gres_per_node", job.gres_per_node) and (shared or is_part(book.planned(fragment) or ""))
        for fragment, job in own
    )


def share_of(node: SlurmNode, gpu_type: str, count: int = 1) -> SlotShare:
    """What a job asks for that gets `count` GPUs of this type: so many times the part of the node's cores and
    memory that falls to one GPU, with which `_spare` counts."""
    num_gpus = max(1, sum(gpus("gres", node.gres).values()))
    gres = f"gpu:{gpu_type}:{count}" if gpu_type else f"gpu:{count}"
    return SlotShare(gres, count * max(1, node.cpus // num_gpus), count * (node.memory_mb // num_gpus))


def slots_within(share: SlotShare, cpus: int | None, memory_mb: int | None) -> float:
    """For how many slots, of which each has this share of a node, so many cores and so much memory suffice; None
    for what is not told, of which there is enough."""
    by_cpus = math.inf if cpus is None else cpus // share.cpus
    by_memory = math.inf if memory_mb is None or not share.memory_mb else memory_mb // share.memory_mb
    return max(0, min(by_cpus, by_memory))


def slots_of(
    node: SlurmNode,
    foreign: Sequence[SlurmJob],
    own: Sequence[tuple[str, SlurmJob]],
    leaving: Sequence[SlurmJob],
    book: SlotBook,
    *,
    opens: bool = True,
) -> Iterator[SlotUse]:
    """The slots of a node that is given in parts. `foreign`: foreground jobs there; `own`: our fragments with
    their live jobs there; `leaving`: jobs of ours that are completing. With `opens` false none is open. Raises
    `FieldError` where GPUs cannot be read."""
    kinds = _kinds(node)
    spare = _spare(node)
    for kind in kinds:
        is_only = len(kinds) == 1
        taken = book.assign(node.name, kind.numbers, _occupants(kind, foreign, own, leaving, is_only=is_only))
        free = [number for number in kind.numbers if number not in taken]
        for number in kind.numbers:
            name = slot_name(node.name, number)
            if number in taken:
                yield SlotUse(name, kind.gpu_type, taken[number].job, taken[number].fragment)
                continue
            is_open = opens and free.index(number) < min(spare, len(free) - kind.drained)
            in_the_way = foreign[0] if foreign and not is_open else None
            yield SlotUse(name, kind.gpu_type, in_the_way, is_taken=False, is_open=is_open)
        spare -= min(spare, len(free))


def _kinds(node: SlurmNode) -> list[_Kind]:
    configured = gpus("gres", node.gres)
    if node.states[0] in _WITH_JOBS and not node.gres_used:
        raise FieldError("gres_used", node.gres_used, f"how many of {node.gres} jobs have")
    used, drained = gpus("gres_used", node.gres_used), gpus("gres_drained", node.gres_drained)
    kinds, first = [], 0
    for gpu_type, total in configured.items():
        # Where a type is not told it may be any.
        of_type = {name: amounts.get(gpu_type, 0) + (amounts.get("", 0) if gpu_type else 0)
                   for name, amounts in (("used", used), ("drained", drained))}  # fmt: skip
        if not gpu_type and sum(used.values()) > used.get("", 0):
            raise FieldError("gres_used", node.gres_used, f"the types of {node.gres}")
        if of_type["used"] > total:
            raise FieldError("gres_used", node.gres_used, f"at most {node.gres}")
        kinds.append(_Kind(gpu_type, range(first, first + total), **of_type))
        first += total
    return kinds


def _spare(node: SlurmNode) -> float:
    """For how many more slots the cores and the memory suffice that no job has; infinite where they are not
    told."""
    cpus = node.cpus - node.used_cpus if node.cpus else None
    memory_mb = node.memory_mb - node.used_memory_mb if node.memory_mb else None
    return slots_within(share_of(node, ""), cpus, memory_mb)


def _occupants(
    kind: _Kind,
    foreign: Sequence[SlurmJob],
    own: Sequence[tuple[str, SlurmJob]],
    leaving: Sequence[SlurmJob],
    *,
    is_only: bool,
) -> list[_Occupant]:
    """The jobs that have GPUs of this kind, ours first; together they have as many as Slurm says are used."""
    ours = [
        _Occupant(f"{job.id}/{kind.gpu_type}", count, job, fragment)
        for fragment, job in own
        if (count := _of_kind(gpus("gres_per_node", job.gres_per_node), kind, is_only=is_only))
    ]
    room = max(0, kind.used - sum(one.count for one in ours))
    others: list[_Occupant] = []
    for job in [*leaving, *foreign]:
        count = min(room, _of_kind(_asked(job), kind, is_only=is_only))
        room -= count
        others += [_Occupant(f"{job.id}/{kind.gpu_type}", count, job)] if count else []
    if room:  # of jobs that asked in another way, or that we may not see
        unclear = next((job for job in foreign if not _asked(job)), foreign[0] if foreign else None)
        others.append(_Occupant(f"?/{kind.gpu_type}", room, unclear))
    return [*ours, *others]


def _asked(job: SlurmJob) -> dict[str, int]:
    """Type -> number of GPUs that the job asked for on each of its nodes, as far as that can be read: its user may
    have written it in any way that Slurm takes, and how many GPUs are taken the node says."""
    try:
        return gpus("gres_per_node", job.gres_per_node)
    except FieldError:
        return {}


def _of_kind(asked: Mapping[str, int], kind: _Kind, *, is_only: bool) -> int:
    """How many GPUs of the kind are among those asked for."""
    return asked.get(kind.gpu_type, 0) + (asked.get("", 0) if is_only and kind.gpu_type else 0)
