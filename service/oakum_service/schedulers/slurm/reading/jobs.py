"""Parses jobs in Slurm's JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from oakum_service.schedulers.slurm.reading.fields import (
    FieldError,
    Number,
    SetNumber,
    Text,
    count,
    moment,
    nodes,
    nodes_or_none,
    number,
    ordered_states,
)
from oakum_service.schedulers.slurm.reading.state import SlurmJob

_HOLDING = frozenset({"RUNNING", "SUSPENDED"})
_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_NODE_GONE = frozenset({"BOOT_FAIL", "NODE_FAIL"})
_TOLD = frozenset({"CANCELLED", "OUT_OF_MEMORY", "TIMEOUT"})
_BASES = _HOLDING | _ENDED | {"PENDING"}
_BASE_OF_FLAG = {
    "CONFIGURING": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "RUNNING",
    "POWER_UP_NODE": "RUNNING",
    "EXPEDITING": "PENDING",
    "LAUNCH_FAILED": "PENDING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "RESERVATION_DEL_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
}
"""Flag -> base state. Versions that give one word give some flags in place of the base state. COMPLETING is not
among them: it hides how the job ended."""


class WireJob(msgspec.Struct, gc=False):
    """The fields of a job that are read. A field with a default is missing from some version."""

    job_id: int
    name: Text
    user_name: Text
    partition: Text
    job_state: str | list[str]
    qos: Text
    nodes: Text
    node_count: Number
    submit_time: Number
    start_time: Number
    end_time: Number
    array_job_id: Number
    array_task_id: Number
    time_limit: Number | msgspec.UnsetType = msgspec.UNSET
    preempt_time: Number = None
    state_reason: Text = None
    scheduled_nodes: Text | msgspec.UnsetType = msgspec.UNSET
    """Missing before 23.02."""
    tres_per_node: Text = None


def to_job(wire: WireJob) -> SlurmJob | None:
    """The job. None if it has ended, is on no node any more, and its end tells nothing (`has_telling_end`). Raises
    `FieldError` for a field that cannot be read."""
    states = job_states([wire.job_state] if isinstance(wire.job_state, str) else wire.job_state)
    preempted_at = moment("preempt_time", wire.preempt_time)
    if has_ended(states) and not has_telling_end(states, preempted_at):
        return None
    num_nodes = count("node_count", wire.node_count)
    start_at = moment("start_time", wire.start_time)
    end_at = moment("end_time", wire.end_time)
    if wire.time_limit is not msgspec.UNSET and end_at is not None and _unlimited(wire.time_limit):
        end_at = math.inf  # for an unlimited job Slurm writes a year after its start
    return SlurmJob(
        id=wire.job_id,
        name=wire.name or "",
        user=wire.user_name or "",
        partition=wire.partition or "",
        states=states,
        qos=wire.qos or "",
        nodes=allocated(states, nodes("nodes", wire.nodes), num_nodes),
        planned_nodes=_planned(wire),
        num_nodes=num_nodes,
        submitted_at=moment("submit_time", wire.submit_time),
        start_at=start_at,
        end_at=end_at,
        preempted_at=preempted_at,
        reason=wire.state_reason or "",
        array_job_id=_id("array_job_id", wire.array_job_id) or None,
        array_task_id=_id("array_task_id", wire.array_task_id),
        gres_per_node=wire.tres_per_node or "",
    )


def job_states(given: list[str]) -> tuple[str, ...]:
    """The given states in upper case, the base state first, then flags. A missing base state is added if a flag
    implies one; a completing job may have none. Raises `FieldError` if no state is given."""
    states = ordered_states([state.upper() for state in given if state], _BASES)
    if not states:
        raise FieldError("job_state", given, "a state such as PENDING or RUNNING")
    if states[0] in _BASES or states == ("COMPLETING",):
        return states
    base = next((_BASE_OF_FLAG[state] for state in states if state in _BASE_OF_FLAG), None)
    return states if base is None else (base, *states)


def has_ended(states: tuple[str, ...]) -> bool:
    """Whether the job is over and its nodes are free. An unknown state counts as not ended."""
    return states[0] in _ENDED and "COMPLETING" not in states


def has_telling_end(states: tuple[str, ...], preempted_at: float | None) -> bool:
    """Whether the reason why the job ended matters: Slurm or somebody ended it, or it lacked memory."""
    return was_ended_by_slurm(states, preempted_at) or states[0] in _TOLD


def was_ended_by_slurm(states: tuple[str, ...], preempted_at: float | None) -> bool:
    """Whether Slurm ended the job, or told it to leave, for its own reasons: it was preempted, or its node
    failed."""
    return was_preempted(states, preempted_at) or states[0] in _NODE_GONE


def was_preempted(states: tuple[str, ...], preempted_at: float | None) -> bool:
    """Whether the job was told to make room for another job.

    A job that leaves within its grace ends as COMPLETED or FAILED; its preemption time remains.
    """
    return preempted_at is not None or states[0] == "PREEMPTED"


def allocated(states: tuple[str, ...], nodes: str, num_nodes: int) -> str:
    """The job's folded node list, `nodes`, which may be empty unless the job holds nodes. Raises `FieldError` for
    a job that holds nodes without naming them, since they would look free."""
    if not nodes and num_nodes and states[0] in _HOLDING and "COMPLETING" not in states:
        raise FieldError("nodes", nodes, f"the {num_nodes} nodes of a job that is {states[0]}")
    return nodes


def salvaged_job(told: Mapping[str, Any]) -> SlurmJob | None:
    """What can be used of a job that cannot be read: it counts as live, on the nodes that it names. None if it
    says that it has ended.

    Raises `FieldError` unless number, name and user can be read: without them it might be one of ours.
    """
    number_, name, user = _field(told, "job_id", int), _field(told, "name", Text), _field(told, "user_name", Text)
    given = _field_or(told, "job_state", str | list[str], [])
    try:
        states = job_states([given] if isinstance(given, str) else given)
    except FieldError:
        states = ("UNKNOWN",)
    if has_ended(states):
        return None
    array_task_id = _field_or(told, "array_task_id", Number, None)
    return SlurmJob(
        id=number_,
        name=name or "",
        user=user or "",
        partition=_field_or(told, "partition", Text, "") or "",
        states=states,
        nodes=nodes_or_none("nodes", _field_or(told, "nodes", Text, "")),
        array_job_id=_id_or_none(_field_or(told, "array_job_id", Number, None)) or None,
        array_task_id=_id_or_none(array_task_id),
    )


def _field(told: Mapping[str, Any], field: str, kind: Any) -> Any:
    """A field of a job, of the given kind. Raises `FieldError`."""
    if field not in told:
        raise FieldError(field, "missing", "a value")
    try:
        return msgspec.convert(told[field], kind)
    except msgspec.ValidationError as error:
        raise FieldError(field, told[field], str(error)) from error


def _field_or(told: Mapping[str, Any], field: str, kind: Any, default: Any) -> Any:
    try:
        return _field(told, field, kind)
    except FieldError:
        return default


def _id_or_none(value: Number) -> int | None:
    try:
        return _id("array", value)
    except FieldError:
        return None


def _planned(wire: WireJob) -> str:
    if wire.scheduled_nodes is not msgspec.UNSET:
        return nodes("scheduled_nodes", wire.scheduled_nodes)
    if isinstance(wire.node_count, SetNumber):
        raise FieldError("scheduled_nodes", "missing", "the nodes planned for it, as told since 23.02")
    return ""


def _unlimited(time_limit: Number) -> bool:
    return time_limit is None or number(time_limit) == math.inf


def _id(field: str, value: Number) -> int | None:
    given = number(value)
    return None if given is None else count(field, given)
