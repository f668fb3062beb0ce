"""Advance reservations in Slurm's JSON."""

from __future__ import annotations

import msgspec

from oakum_service.schedulers.slurm.fields import FieldError, Number, Text, Texts, moment, words
from oakum_service.schedulers.slurm.state import SlurmReservation

KEPT_S = 60.0
"""They change seldom, and each way to ask for them is a call of its own."""


def are_old(read_at: float | None, now: float) -> bool:
    """Whether those that were read at that time have to be read again; None: never, so they have."""
    return read_at is None or not 0 <= now - read_at < KEPT_S


class WireReservation(msgspec.Struct, gc=False):
    """What we read of a reservation."""

    name: str
    node_list: Text
    start_time: Number
    end_time: Number
    flags: Texts


def to_reservation(wire: WireReservation) -> SlurmReservation:
    """Raises `FieldError`, for a start or an end that is not told too."""
    return SlurmReservation(
        name=wire.name,
        nodes=wire.node_list or "",
        start_at=_told("start_time", wire.start_time),
        end_at=_told("end_time", wire.end_time),
        flags=words(wire.flags),
    )


def _told(field: str, value: Number) -> float:
    at = moment(field, value)
    if at is None:
        raise FieldError(field, "not set", "Unix seconds")
    return at
