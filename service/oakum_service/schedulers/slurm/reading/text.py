"""Parses the text output of Slurm's commands, for versions whose JSON is missing or leaves out too much.

Every time is requested in Unix seconds. Users choose job names, which may hold separators and whole lines. So the
name is the last field, and each job ends with a random mark that no name can contain.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading.fields import FieldError, nodes, nodes_or_none, words
from oakum_service.schedulers.slurm.reading.jobs import (
    allocated,
    has_ended,
    has_telling_end,
    job_states,
    salvaged_job,
)
from oakum_service.schedulers.slurm.reading.nodes import gres, node_states, unknown_node
from oakum_service.schedulers.slurm.reading.payloads import Origin, ParsedAnswer, checked_nodes
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, Unread

_JOB_FIELDS = {
    "id": "JobID",
    "array_job_id": "ArrayJobID",
    "array_task_id": "ArrayTaskID",
    "user": "UserName",
    "partition": "Partition",
    "state": "State",
    "qos": "QOS",
    "nodes": "NodeList",
    "planned_nodes": "SchedNodes",
    "num_nodes": "NumNodes",
    "submitted_at": "SubmitTime",
    "start_at": "StartTime",
    "end_at": "EndTime",
    "preempted_at": "PreemptTime",
    "reason": "Reason",
    "gres_per_node": "tres-per-node",
    "name": "Name",
}
_NOTHING = frozenset({"", "(null)", "N/A", "None", "NONE", "Unknown", "n/a"})
_ENDLESS = frozenset({"NONE", "UNLIMITED", "INFINITE"})
_PAIR = re.compile(r"(\w+)=(\S*)")
_LAST_CYCLE = re.compile(r"Main schedule statistics.*?Last cycle:\s*(\d+)", re.DOTALL)
_CONTROLLER = re.compile(r"^SLURM_VERSION\s*=\s*(\S+)", re.MULTILINE)

Value = TypeVar("Value")


def new_mark() -> str:
    """A random mark that ends each job's output. Each call gets a new one, since users can see earlier ones."""
    return f"oakum-{secrets.token_hex(8)}"


def job_format(mark: str) -> str:
    """The value for `squeue --Format`: every field at its full width (0), followed by a separator or the mark."""
    *fields, name = _JOB_FIELDS.values()
    return ",".join([*(f"{field}:0|" for field in fields), f"{name}:0|{mark}"])


def read_jobs(output: bytes, mark: str, origin: Origin) -> ParsedAnswer[SlurmJob]:
    """The jobs in the output of `squeue` for `job_format(mark)`; `mark` ends each job's record. Jobs that have
    ended are left out, except where their end tells something (`has_telling_end`).

    Raises `PayloadError` where text follows the last mark, or where a record is not one of a job.
    """
    *records, after = output.decode(errors="replace").split(f"|{mark}\n")
    if after.strip():
        raise PayloadError(f"{origin} answered {after[:80]!r} after the last job")
    fields_of_jobs = [_fields_of_job(record, origin) for record in records]
    return _all("job", [(fields["id"], fields) for fields in fields_of_jobs], _job, _salvaged_job, origin)


def read_nodes(output: bytes, origin: Origin) -> ParsedAnswer[SlurmNode]:
    """The nodes in `scontrol --oneliner show nodes`. Raises `PayloadError` if there are none, or none of them can
    be understood."""
    return checked_nodes(_all("node", _pairs_of(output, "NodeName"), _node, _salvaged_node, origin), origin)


def read_reservations(output: bytes, origin: Origin) -> ParsedAnswer[SlurmReservation]:
    """The reservations in `scontrol --oneliner show reservations`."""
    pairs = _pairs_of(output, "ReservationName")
    return _all("reservation", pairs, _reservation, lambda _: None, origin)


def read_cycle_s(output: bytes) -> float | None:
    """Seconds of the main scheduler's last cycle in `sdiag`; None if it is missing."""
    match = _LAST_CYCLE.search(output.decode(errors="replace"))
    return int(match[1]) / 1e6 if match else None


def read_controller(output: bytes) -> str | None:
    """Version of slurmctld in `scontrol show config`; None if it is missing."""
    match = _CONTROLLER.search(output.decode(errors="replace"))
    return match[1] if match else None


def _all(
    kind: str,
    items: Iterable[tuple[str, dict[str, str]]],
    read: Callable[[dict[str, str]], Value | None],
    salvage: Callable[[dict[str, str]], Value | None],
    origin: Origin,
) -> ParsedAnswer[Value]:
    """The items, each given as its name and its fields; those that cannot be read are noted, and what `salvage`
    finds in them is used."""
    values: list[Value] = []
    unread: list[Unread] = []
    for name, told in items:
        try:
            value = read(told)
        except FieldError as error:
            value = salvage(told)
            listed = told.get("Nodes") or told.get("nodes") or told.get("NodeName")
            folded = nodes_or_none("nodes", _text(listed or ""))
            unread.append(Unread(kind, name, f"{origin}, {kind} {name}: {error}", folded))
        values += [] if value is None else [value]
    return ParsedAnswer(tuple(values), unread=tuple(unread))


def _pairs_of(output: bytes, name: str) -> list[tuple[str, dict[str, str]]]:
    """(name, fields) of each line that begins with `name`=."""
    lines = output.decode(errors="replace").splitlines()
    rows = [_pairs(line) for line in lines if line.startswith(f"{name}=")]
    return [(fields[name], fields) for fields in rows]


def _fields_of_job(record: str, origin: Origin) -> dict[str, str]:
    """The fields of a job's record. Raises `PayloadError` unless it has all of them, and a number."""
    values = record.split("|", len(_JOB_FIELDS) - 1)
    fields = dict(zip(_JOB_FIELDS, values, strict=False))
    try:
        if len(values) != len(_JOB_FIELDS):
            raise FieldError("line", record, f"{len(_JOB_FIELDS)} fields: {', '.join(_JOB_FIELDS)}")
        _whole("id", fields["id"])
    except FieldError as error:
        raise PayloadError(f"{origin}, job {fields['id']}: {error}") from error
    return fields


def _job(told: dict[str, str]) -> SlurmJob | None:
    states = job_states([told["state"]])
    preempted_at = _moment("preempted_at", told["preempted_at"])
    if has_ended(states) and not has_telling_end(states, preempted_at):
        return None
    num_nodes = _whole("num_nodes", told["num_nodes"])
    task = told["array_task_id"]
    return SlurmJob(
        id=_whole("id", told["id"]),
        name=told["name"],
        user=told["user"],
        partition=told["partition"],
        states=states,
        qos=_text(told["qos"]),
        nodes=allocated(states, nodes("nodes", _text(told["nodes"])), num_nodes),
        planned_nodes=nodes("planned_nodes", _text(told["planned_nodes"])),
        num_nodes=num_nodes,
        submitted_at=_moment("submitted_at", told["submitted_at"]),
        start_at=_moment("start_at", told["start_at"]),
        end_at=math.inf if told["end_at"] in _ENDLESS else _moment("end_at", told["end_at"]),
        preempted_at=preempted_at,
        reason=told["reason"],
        array_job_id=None if task in _NOTHING else _whole("array_job_id", told["array_job_id"]),
        array_task_id=int(task) if task.isdecimal() else None,
        gres_per_node=_text(told["gres_per_node"]),
    )


def _salvaged_job(told: dict[str, str]) -> SlurmJob | None:
    array, task = told["array_job_id"], told["array_task_id"]
    is_task = array.isdecimal() and task not in _NOTHING
    return salvaged_job(
        {
            "job_id": int(told["id"]),
            "name": told["name"],
            "user_name": told["user"],
            "partition": told["partition"],
            "job_state": told["state"],
            "nodes": _text(told["nodes"]),
            "array_job_id": int(array) if is_task else None,
            "array_task_id": int(task) if is_task and task.isdecimal() else None,
        }
    )


def _node(told: dict[str, str]) -> SlurmNode:
    return SlurmNode(
        name=told["NodeName"],
        address=_text(told.get("NodeAddr", "")) or _text(told.get("NodeHostName", "")) or told["NodeName"],
        states=node_states(_needed(told, "State").split("+")),
        partitions=words(_text(told.get("Partitions", ""))),
        gres=gres(_needed(told, "Gres")),
        features=words(_text(told.get("ActiveFeatures", ""))),
        reservation=_text(told.get("ReservationName", "")),
        gres_used=gres(told.get("GresUsed")),
        gres_drained=gres(told.get("GresDrain")),
        cpus=_amount(told, "CPUEfctv") or _amount(told, "CPUTot"),
        used_cpus=_amount(told, "CPUAlloc"),
        memory_mb=max(0, _amount(told, "RealMemory") - _amount(told, "MemSpecLimit")),
        used_memory_mb=_amount(told, "AllocMem"),
    )


def _salvaged_node(told: dict[str, str]) -> SlurmNode:
    return unknown_node(told["NodeName"], words(_text(told.get("Partitions", ""))))


def _reservation(told: dict[str, str]) -> SlurmReservation:
    start_at, end_at = (_moment(field, _needed(told, field)) for field in ("StartTime", "EndTime"))
    if start_at is None or end_at is None:
        raise FieldError("StartTime, EndTime", (told["StartTime"], told["EndTime"]), "Unix seconds")
    return SlurmReservation(
        name=told["ReservationName"],
        nodes=nodes("Nodes", _text(_needed(told, "Nodes"))),
        start_at=start_at,
        end_at=end_at,
        flags=words(_text(told.get("Flags", ""))),
    )


def _pairs(line: str) -> dict[str, str]:
    """Name -> value, the first of each name: a reason or comment, which may contain anything, comes after the
    fields we read."""
    pairs: dict[str, str] = {}
    for name, value in _PAIR.findall(line):
        pairs.setdefault(name, value)
    return pairs


def _needed(told: dict[str, str], field: str) -> str:
    if field not in told:
        raise FieldError(field, "missing", "a value")
    return told[field]


def _text(value: str) -> str:
    return "" if value in _NOTHING else value


def _amount(told: dict[str, str], field: str) -> int:
    """A number of CPUs or megabytes; 0 where it is not told."""
    value = told.get(field, "")
    return int(value) if value.isdecimal() else 0


def _whole(field: str, value: str) -> int:
    if not value.isdecimal():
        raise FieldError(field, value, "a whole number")
    return int(value)


def _moment(field: str, value: str) -> float | None:
    """The Unix seconds in `value`, also from an ISO time in UTC, which versions write that do not know
    SLURM_TIME_FORMAT; None for none. Raises `FieldError` for anything else."""
    if value in _NOTHING:
        return None
    if value.isdecimal():
        return float(value) or None
    try:
        return datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise FieldError(field, value, "Unix seconds") from error
