"""Parses Slurm's JSON answers, with messages that name what cannot be read.

Only the fields that we need are decoded, directly into typed structs: a job is 12 KB of JSON, most of it lists of
cores. One unreadable job fails the whole answer, since the node that it runs on would otherwise look idle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading.fields import FieldError, Number, number, shown
from oakum_service.schedulers.slurm.reading.jobs import WireJob, to_job
from oakum_service.schedulers.slurm.reading.nodes import WireNode, to_node
from oakum_service.schedulers.slurm.reading.reservations import WireReservation, to_reservation
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation

_PLACE = re.compile(r"\$\.(\w+)\[(\d+)\](?:\.(\w+))?")
_MISSING = re.compile(r"missing required field `(\w+)`")

Wire = TypeVar("Wire")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Origin:
    """Where an answer came from, for error messages."""

    call: str
    """The command or URL, such as `squeue --json`."""
    parser: str
    """The version of Slurm or the data parser that wrote the answer."""

    def __str__(self) -> str:
        return f"{self.call} ({self.parser})"


@dataclass(frozen=True)
class ParsedAnswer(Generic[Value]):
    """The values that an answer of Slurm contains, and when they last changed."""

    values: tuple[Value, ...]
    updated_at: int | None = None
    """When the data last changed, by slurmctld's clock; a later request may ask for changes since then."""


class _Envelope(msgspec.Struct, Generic[Wire]):
    nodes: list[Wire] | msgspec.UnsetType = msgspec.UNSET
    jobs: list[Wire] | msgspec.UnsetType = msgspec.UNSET
    reservations: list[Wire] | msgspec.UnsetType = msgspec.UNSET
    errors: Any = None
    last_update: Number = None


class _Head(msgspec.Struct):
    meta: Any = None
    errors: Any = None


@dataclass(frozen=True)
class _Kind(Generic[Wire, Value]):
    key: str
    one: str
    id_field: str
    decoder: msgspec.json.Decoder[_Envelope[Wire]]
    convert: Callable[[Wire], Value | None]


_NODES = _Kind("nodes", "node", "name", msgspec.json.Decoder(_Envelope[WireNode]), to_node)
_JOBS = _Kind("jobs", "job", "job_id", msgspec.json.Decoder(_Envelope[WireJob]), to_job)
_RESERVATIONS = _Kind(
    "reservations", "reservation", "name", msgspec.json.Decoder(_Envelope[WireReservation]), to_reservation
)
_HEAD = msgspec.json.Decoder(_Head)


def read_nodes(body: bytes, origin: Origin) -> ParsedAnswer[SlurmNode]:
    """All nodes. Raises `PayloadError`, also if there are none, since then this account may not see them."""
    nodes = _read(_NODES, body, origin)
    if not nodes.values:
        raise no_nodes(origin)
    return nodes


def read_jobs(body: bytes, origin: Origin) -> ParsedAnswer[SlurmJob]:
    """The jobs that have not ended, and ended jobs whose end tells something (`has_telling_end`). Raises
    `PayloadError`."""
    return _read(_JOBS, body, origin)


def read_reservations(body: bytes, origin: Origin) -> ParsedAnswer[SlurmReservation]:
    """All reservations. Raises `PayloadError`."""
    return _read(_RESERVATIONS, body, origin)


def read_version(body: bytes, origin: Origin) -> str:
    """The release of Slurm that answered; `unknown` if the answer does not say. Raises `PayloadError`."""
    try:
        head = _decode(_HEAD, body, origin)
    except msgspec.ValidationError as error:
        raise PayloadError(f"{origin} cannot be read: {error}") from error
    refuse_errors(head.errors, origin)
    meta = head.meta if isinstance(head.meta, dict) else {}
    slurm = meta.get("slurm") or meta.get("Slurm") or {}
    return str(slurm.get("release") or "unknown") if isinstance(slurm, dict) else "unknown"


def refuse_errors(errors: Any, origin: Origin) -> None:
    """Raise `PayloadError` if Slurm's own list of errors is not empty."""
    if errors:
        raise PayloadError(f"{origin} answered with errors: {told_errors(errors)}")


def no_nodes(origin: Origin) -> PayloadError:
    """The error for an answer without nodes."""
    return PayloadError(
        f"{origin} shows no node at all: give this account the right to see them (PrivateData in slurm.conf)"
    )


def told_errors(errors: Any) -> str:
    """Slurm's list of errors on one line, whatever its version calls their parts."""
    told = []
    for error in errors if isinstance(errors, list) else [errors]:
        parts = (
            [error.get(key) for key in ("error", "description", "source")] if isinstance(error, dict) else [error]
        )
        told.append(", ".join(str(part) for part in parts if part) or shown(error))
    return "; ".join(told)


def _read(kind: _Kind[Wire, Value], body: bytes, origin: Origin) -> ParsedAnswer[Value]:
    try:
        envelope = _decode(kind.decoder, body, origin)
    except msgspec.ValidationError as error:
        raise _explained(kind, body, origin, error) from error
    refuse_errors(envelope.errors, origin)
    items: list[Wire] | msgspec.UnsetType = getattr(envelope, kind.key)
    if items is msgspec.UNSET:
        raise PayloadError(f"{origin} answered without {kind.key!r}: this version of Slurm is not supported")
    values = []
    for item in items:
        try:
            value = kind.convert(item)
        except FieldError as error:
            name = getattr(item, kind.id_field)
            raise PayloadError(f"{origin}, {kind.one} {name}: {error}") from error
        if value is not None:
            values.append(value)
    updated_at = number(envelope.last_update)
    return ParsedAnswer(tuple(values), int(updated_at) if updated_at and math.isfinite(updated_at) else None)


def _decode(decoder: msgspec.json.Decoder[Value], body: bytes, origin: Origin) -> Value:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except UnicodeDecodeError:
        # A job's name may hold any bytes, and Slurm passes them on.
        return decoder.decode(body.decode(errors="replace"))
    except msgspec.DecodeError as error:
        raise PayloadError(f"{origin} answered no JSON ({error}): it begins with {body[:80]!r}") from error


def _explained(kind: _Kind[Any, Any], body: bytes, origin: Origin, error: Exception) -> PayloadError:
    """A `PayloadError` that names the item, the field and the value that cannot be read. Decodes the answer again,
    which costs nothing while all is well."""
    place = _PLACE.search(str(error))
    item = _item(body, place[1], int(place[2])) if place else None
    if place is None or not isinstance(item, dict):
        return PayloadError(f"{origin} cannot be read: {error}")
    missing = _MISSING.search(str(error))
    field = place[3] or (missing[1] if missing else "it")
    name = item.get(kind.id_field, f"number {place[2]}")
    value = shown(item[field]) if field in item else "missing"
    return PayloadError(f"{origin}, {kind.one} {name}: {field} is {value}; {error}")


def _item(body: bytes, key: str, index: int) -> Any:
    """One item of a list in an answer; None if the answer cannot be decoded that far."""
    try:
        raw = msgspec.json.decode(body.decode(errors="replace"), type=dict[str, msgspec.Raw])[key]
        return msgspec.json.decode(msgspec.json.decode(raw, type=list[msgspec.Raw])[index])
    except (msgspec.DecodeError, LookupError):
        return None
