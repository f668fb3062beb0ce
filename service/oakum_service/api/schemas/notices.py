"""Documents of notices."""

from __future__ import annotations

from pydantic import BaseModel

from oakum_worker.spec_options import NotifySpec


class NoticeView(BaseModel):
    """A notice to one recipient, and its outcome so far."""

    id: str
    event: str
    trainer: str
    """The trainer's name."""
    recipient: str
    """The recipient; a webhook's path is left out, since whoever knows it may post there."""
    created_at: float
    attempts: int
    sent_at: float | None
    next_at: float | None
    """When delivery is attempted next; null once the notice was accepted or given up."""
    error: str
    """Why the last attempt failed; empty if it did not."""


class NoticeList(BaseModel):
    """Notices, in order of time."""

    notices: list[NoticeView]


class NoticeTest(NotifySpec):
    """A recipient to send a test notice to."""


class NoticeTested(BaseModel):
    """Whether a test notice was sent, to whom, and the error if not."""

    sent: bool
    recipient: str
    error: str
