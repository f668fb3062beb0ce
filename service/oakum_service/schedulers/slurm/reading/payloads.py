"""Parses Slurm's JSON answers, with messages that name what cannot be read.

Only the fields that we need are decoded, directly into typed structs: a job is 12 KB of JSON, most of it lists of
cores. An item that cannot be read costs what it is about: its node counts as unavailable, its job as live on the
nodes that it names. Only then are items decoded one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading.fields import FieldError, Number, nodes_or_none, number, shown
from oakum_service.schedulers.slurm.reading.jobs import WireJob, salvaged_job, to_job
from oakum_service.schedulers.slurm.reading.nodes import WireNode, salvaged_node, to_node
from oakum_service.schedulers.slurm.reading.reservations import WireReservation, to_reservation
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState, Unread

_PLACE = re.compile(r"\$\.(\w+)")
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
    unread: tuple[Unread, ...] = ()
    """The items that could not be understood; `values` has what can be used of them."""


def to_state(
    taken_at: float,
    version: str,
    nodes: ParsedAnswer[SlurmNode],
    jobs: ParsedAnswer[SlurmJob],
    reservations: ParsedAnswer[SlurmReservation],
) -> SlurmState:
    """The state that these answers tell."""
    unread = (*nodes.unread, *jobs.unread, *reservations.unread)
    return SlurmState(taken_at, version, nodes.values, jobs.values, reservations.values, unread)


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
    nodes_field: str
    wire: type[Wire]
    decoder: msgspec.json.Decoder[_Envelope[Wire]]
    convert: Callable[[Wire], Value | None]
    salvage: Callable[[Mapping[str, Any]], Value | None]
    """What can be used of an item that `convert` refuses. Raises `FieldError` if the answer is then of no use."""


def _nothing(told: Mapping[str, Any]) -> None:
    """Nothing can be used of it."""


_NODES = _Kind(
    "nodes", "node", "name", "name", WireNode, msgspec.json.Decoder(_Envelope[WireNode]), to_node, salvaged_node
)
_JOBS = _Kind(
    "jobs", "job", "job_id", "nodes", WireJob, msgspec.json.Decoder(_Envelope[WireJob]), to_job, salvaged_job
)
_RESERVATIONS: _Kind[WireReservation, SlurmReservation] = _Kind(
    "reservations",
    "reservation",
    "name",
    "node_list",
    WireReservation,
    msgspec.json.Decoder(_Envelope[WireReservation]),
    to_reservation,
    _nothing,
)
_RAW = msgspec.json.Decoder(_Envelope[msgspec.Raw])
_HEAD = msgspec.json.Decoder(_Head)


def read_nodes(body: bytes, origin: Origin) -> ParsedAnswer[SlurmNode]:
    """All nodes. Raises `PayloadError` if there are none, since then this account may not see them, and if none of
    them can be understood."""
    return checked_nodes(_read(_NODES, body, origin), origin)


def checked_nodes(nodes: ParsedAnswer[SlurmNode], origin: Origin) -> ParsedAnswer[SlurmNode]:
    """The nodes. Raises `PayloadError` if there are none, or none of them can be understood."""
    if nodes.unread and len(nodes.unread) >= len(nodes.values):
        raise PayloadError(f"no node can be understood: {nodes.unread[0].why}")
    if not nodes.values:
        raise no_nodes(origin)
    return nodes


def read_jobs(body: bytes, origin: Origin) -> ParsedAnswer[SlurmJob]:
    """The jobs that have not ended, and ended jobs whose end tells something (`has_telling_end`). Raises
    `PayloadError`, also for a job that might be ours and cannot be understood."""
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
        raise PayloadError(f"{origin} answered with errors: {errors_text(errors)}")


def no_nodes(origin: Origin) -> PayloadError:
    """The error for an answer without nodes."""
    return PayloadError(
        f"{origin} shows no node at all: give this account the right to see them (PrivateData in slurm.conf)"
    )


def errors_text(errors: Any) -> str:
    """Slurm's list of errors on one line, whatever its version calls their parts."""
    texts = []
    for error in errors if isinstance(errors, list) else [errors]:
        parts = (
            [error.get(key) for key in ("error", "description", "source")] if isinstance(error, dict) else [error]
        )
        texts.append(", ".join(str(part) for part in parts if part) or shown(error))
    return "; ".join(texts)


def _read(kind: _Kind[Wire, Value], body: bytes, origin: Origin) -> ParsedAnswer[Value]:
    parsed = _Items(kind, origin)
    try:
        envelope = _decode(kind.decoder, body, origin)
    except msgspec.ValidationError:
        updated_at = number(_read_each(kind, body, origin, parsed))
    else:
        for item in _items(kind, envelope, origin):
            parsed.add(item)
        updated_at = number(envelope.last_update)
    at = int(updated_at) if updated_at and math.isfinite(updated_at) else None
    return ParsedAnswer(tuple(parsed.values), at, tuple(parsed.unread))


def _read_each(kind: _Kind[Wire, Value], body: bytes, origin: Origin, parsed: _Items[Wire, Value]) -> Number:
    """Decode items one by one, after some of them could not be decoded. Returns when the answer's data last
    changed."""
    try:
        envelope = _decode(_RAW, body, origin)
    except msgspec.ValidationError as error:
        raise PayloadError(f"{origin} cannot be read: {error}") from error
    decoder = msgspec.json.Decoder(kind.wire)
    for index, raw in enumerate(_items(kind, envelope, origin)):
        text = bytes(raw).decode(errors="replace")
        try:
            parsed.add(decoder.decode(text))
        except msgspec.ValidationError as error:
            parsed.add_unread(msgspec.json.decode(text), index, error)
    return envelope.last_update


def _items(kind: _Kind[Any, Any], envelope: _Envelope[Wire], origin: Origin) -> list[Wire]:
    refuse_errors(envelope.errors, origin)
    items: list[Wire] | msgspec.UnsetType = getattr(envelope, kind.key)
    if items is msgspec.UNSET:
        raise PayloadError(f"{origin} answered without {kind.key!r}: this version of Slurm is not supported")
    return items


class _Items(Generic[Wire, Value]):
    """The items of an answer, converted, and those that could not be."""

    def __init__(self, kind: _Kind[Wire, Value], origin: Origin) -> None:
        self._kind = kind
        self._origin = origin
        self.values: list[Value] = []
        self.unread: list[Unread] = []

    def add(self, item: Wire) -> None:
        """Convert an item, or note that it cannot be."""
        try:
            value = self._kind.convert(item)
        except FieldError as error:
            self._note(msgspec.to_builtins(item), f"{getattr(item, self._kind.id_field)}: {error}")
        else:
            self.values += [] if value is None else [value]

    def add_unread(self, told: Any, index: int, error: msgspec.ValidationError) -> None:
        """Note an item that could not be decoded: the one at `index`. Raises `PayloadError` if it is none at
        all."""
        if not isinstance(told, dict):
            raise PayloadError(
                f"{self._origin}, {self._kind.one} number {index}: {shown(told)}; {error}"
            ) from error
        name = told.get(self._kind.id_field, f"number {index}")
        missing, place = _MISSING.search(str(error)), _PLACE.search(str(error))
        field = place[1] if place else missing[1] if missing else "it"
        value = shown(told[field]) if field in told else "missing"
        self._note(told, f"{name}: {field} is {value}; {error}")

    def _note(self, told: dict[str, Any], why: str) -> None:
        kind, where = self._kind, f"{self._origin}, {self._kind.one} {why}"
        try:
            value = kind.salvage(told)
        except FieldError as error:
            raise PayloadError(where) from error
        given = told.get(kind.nodes_field)
        nodes = nodes_or_none(kind.nodes_field, given) if isinstance(given, str) else ""
        self.values += [] if value is None else [value]
        self.unread.append(Unread(kind.one, str(told.get(kind.id_field, "without a name")), where, nodes))


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
