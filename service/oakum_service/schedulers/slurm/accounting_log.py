"""Reads from Slurm's accounting which nodes, or which of their GPUs, were idle, and when: the idle log of `oakum
replay slurm`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.accounted_nodes import AccountedNodes, read_nodes
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.tres import Tres, read_tres
from oakum_service.schedulers.slurm.slot_sweep import Use, idle_spans, spread
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import HEADER, SLOT_HEADER, read_idle_log
from oakum_solver.logs.node_lists import unfold

_LONGEST_S = 1800.0
"""Time limit for a command: a month of a busy cluster takes slurmdbd minutes."""
_TIME = "%Y-%m-%dT%H:%M:%S"
_NO_NODES = frozenset({"", "(null)", "None assigned", "None"})
_UNTOLD = "jobs of which it is not told what they have, read as having all of their nodes"
_TOO_MANY = "jobs that have more GPUs than their nodes have now"
_UNEVEN = "jobs whose GPUs do not divide by their nodes, read as spread as evenly as goes"


def read_accounting(settings: SlurmSettings, since: float, until: float) -> HoleLog:
    """The holes of the partition's nodes, or of all nodes where no partition is set, from `since` to `until` in
    Unix seconds. A node is idle while no job had it and it was neither down nor drained. With the setting `slots:
    gpu` the holes are those of slots: a GPU of a node is idle where a fragment for it would have started.

    Raises `LogError` where Slurm or its accounting does not answer, no node was ever idle, or GPUs are asked for
    that the accounting does not know of.
    """
    commands = SlurmCommands(settings.model_copy(update={"command_timeout_s": _LONGEST_S}))
    try:
        nodes = read_nodes(commands, settings)
        fields = _JOB_FIELDS if nodes.any_in_parts else _JOB_FIELDS[:3]
        jobs = _rows(
            commands,
            len(fields),
            *("sacct", *_SACCT, f"--format={','.join(fields)}"),
            *_window("--starttime=", "--endtime=", since, until),
        )
        events = _rows(commands, 3, *_EVENTS, *_window("start=", "end=", since, until))
    except SchedulerError as error:
        raise LogError(f"Slurm's accounting cannot be read: {error}") from error
    books = _Books(nodes, until)
    for folded, began, ended, *tres in [*jobs, *events]:
        books.note(folded, began, ended, tres)
    read = f"read from Slurm's accounting: {len(jobs):,} jobs, {len(events):,} events of nodes, {nodes.counted}"
    log = replace(_hole_log(books, since, until), name="slurm")
    return replace(log, notes=(read, *nodes.notes, *books.notes(), *log.notes))


_SACCT = ("--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2", "--noconvert")
_JOB_FIELDS = ("NodeList", "Start", "End", "AllocTRES", "ReqTRES")
_EVENTS = (
    *("sacctmgr", "--noheader", "--parsable2", "show", "event"),
    "format=NodeName,TimeStart,TimeEnd",
)


def _window(start: str, end: str, since: float, until: float) -> tuple[str, str]:
    # Commands that are asked for Unix seconds run in UTC.
    return start + time.strftime(_TIME, time.gmtime(since)), end + time.strftime(_TIME, time.gmtime(until))


def _rows(commands: SlurmCommands, fields: int, name: str, *arguments: str) -> list[list[str]]:
    output = commands.run(name, *arguments, epoch_times=True).decode(errors="replace")
    return [line.split("|")[:fields] for line in output.splitlines() if line.count("|") >= fields - 1]


@dataclass
class _Books:
    """Which nodes were used, from when to when, and how much of them."""

    nodes: AccountedNodes
    until: float
    """What has not ended is busy until then."""
    uses: dict[str, list[Use]] = field(init=False)
    odd: Counter[str] = field(default_factory=Counter)
    """What could not be used as it stands."""
    has_gpus: bool = False
    """Whether any job has GPUs."""
    _unfolded: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uses = {node: [] for node in self.nodes.capacities}

    def note(self, folded: str, began: str, ended: str, tres: list[str]) -> None:
        """Note a job with its `tres`, allocated and requested, or an event of a node without any."""
        if folded.strip() in _NO_NODES or not began.isdecimal():
            return  # it has not begun, or never did
        end = float(ended) if ended.isdecimal() else self.until
        if end < float(began):
            self.odd["jobs and events left out that end before they begin"] += 1
            return
        names = self._unfold(folded)
        if self.uses.keys().isdisjoint(names):
            return
        for node, had in zip(names, self._had(names, tres), strict=True):
            if node in self.uses:
                self.uses[node].append(Use(float(began), end, had))

    def _had(self, names: tuple[str, ...], tres: list[str]) -> Iterable[Tres | None]:
        """What was had of each of these nodes; None for all of it."""
        if not self.nodes.any_in_parts or not tres:
            return [None] * len(names)
        told = next((one for one in tres if one.strip()), "")
        had = Tres()
        with suppress(FieldError):
            had = read_tres("TRES", told)
        if had == Tres():
            self.odd[_UNTOLD] += 1
            return [None] * len(names)
        shares = spread(had, [self.nodes.capacities.get(name) for name in names])
        self.has_gpus |= had.gpus > 0
        self.odd[_TOO_MANY] += sum(share.gpus for share in shares) < had.gpus
        self.odd[_UNEVEN] += had.gpus % len(names) > 0
        return shares

    def _unfold(self, folded: str) -> tuple[str, ...]:
        if folded not in self._unfolded:
            self._unfolded[folded] = ()
            try:
                self._unfolded[folded] = unfold(folded)
            except ValueError:
                self.odd["lists of nodes left out that cannot be read"] += 1
        return self._unfolded[folded]

    def notes(self) -> Iterator[str]:
        """What could not be used, as sentences for a person."""
        yield from (f"{what}: {count:,}" for what, count in self.odd.items() if count)
        if self.nodes.any_in_parts and not self.has_gpus:
            yield (
                "no job has GPUs in the accounting, so all of them count as idle while cores and memory are: was "
                "gres/gpu added to AccountingStorageTRES only now?"
            )


def _hole_log(books: _Books, since: float, until: float) -> HoleLog:
    """The holes between the uses; they are written as an idle log and read again, so that one reader has all
    rules."""
    with TemporaryDirectory(prefix="oakum-replay-") as folder:
        path = Path(folder) / "slurm.csv"
        with path.open("w", encoding="utf-8") as file:
            file.write(",".join(SLOT_HEADER if books.nodes.any_in_parts else HEADER) + "\n")
            for node, uses in books.uses.items():
                file.writelines(_lines(node, uses, books.nodes, since, until))
        return read_idle_log(path)


def _lines(node: str, uses: Iterable[Use], nodes: AccountedNodes, since: float, until: float) -> Iterator[str]:
    capacity = nodes.capacities[node]
    for slot, begin, end in idle_spans(capacity, uses, since, until):
        row = f"{node},{begin:.0f},{end:.0f}"
        yield f"{row},{slot},{capacity.slots}\n" if nodes.any_in_parts else f"{row}\n"
