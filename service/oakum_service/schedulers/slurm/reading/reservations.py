"""Parses advance reservations in Slurm's JSON."""

from __future__ import annotations

import msgspec

from oakum_service.schedulers.slurm.reading.fields import FieldError, Number, Text, Texts, moment, nodes, words
from oakum_service.schedulers.slurm.reading.state import SlurmReservation

KEPT_S = 60.0
"""Seconds between two readings of the reservations: they change seldom, and reading them is a call of its own."""


def are_old(read_at: float | None, now: float) -> bool:
    """Whether reservations read at `read_at` have to be read again; None: they were never read."""
    return read_at is None or not 0 <= now - read_at < KEPT_S


class WireReservation(msgspec.Struct, gc=False):
    """The fields of a reservation that are read."""

    name: str
    node_list: Text
    start_time: Number
    end_time: Number
    flags: Texts


def to_reservation(wire: WireReservation) -> SlurmReservation:
    """The reservation. Raises `FieldError`, also for a missing start or end."""
    return SlurmReservation(
        name=wire.name,
        nodes=nodes("node_list", wire.node_list),
        start_at=_moment("start_time", wire.start_time),
        end_at=_moment("end_time", wire.end_time),
        flags=words(wire.flags),
    )


def _moment(field: str, value: Number) -> float:
    at = moment(field, value)
    if at is None:
        raise FieldError(field, "not set", "Unix seconds")
    return at
