"""Notices, as recipients get them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """What happened to a trainer. The fields are those of the JSON document that webhooks receive."""

    event: str
    """A `NoticeEvent`, or `test`."""
    trainer: str
    """The trainer's name."""
    trainer_id: str | None
    user: str | None
    """Name of the token that submitted the trainer; None if it is not known."""
    message: str
    step: int | None
    """Number of finished steps; None before the first progress."""
    at: float
    """When it happened, in Unix seconds."""
    id: str = ""
    """The same in every attempt to deliver the notice to one recipient; empty before it is addressed to one."""
