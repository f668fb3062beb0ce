"""Documents of the ledger."""

from __future__ import annotations

from pydantic import BaseModel


class LedgerEntry(BaseModel):
    """What one user's trainers had in one month, in node-hours, and how long others waited for them."""

    month: str
    """By UTC, such as `2026-11`."""
    user: str
    """Name of the user's tokens; empty for trainers without one."""
    lent_node_h: float
    trained_node_h: float
    """Node-hours lent without those that were lost to the five causes below."""
    warm_up_node_h: float
    grow_node_h: float
    """Stalls because nodes joined; the next two: because they left, and because they were lost."""
    shrink_node_h: float
    loss_node_h: float
    repeated_node_h: float
    """Training of steps that had to be repeated."""
    foreground_delay_s: float
    """Seconds that foreground jobs waited for the user's fragments."""
    ends: dict[str, int] = {}
    """Cause of fragments' ends -> how many ended by it: `preempted`, `released`, `cancelled` (by somebody else
    than the service), `time limit`, `finished`, `failed`, `lost`, `never reported`."""


class Ledger(BaseModel):
    """The ledger of some months, the newest first, and within a month by user."""

    from_month: str
    to_month: str
    entries: list[LedgerEntry]
