"""Grants: what a plan gives to each trainer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grant:
    """The nodes that a plan gives to one trainer, and why so many."""

    nodes: tuple[str, ...]
    why: str
    """A word of `oakum_solver.plan.Why`, or one that an earlier version knew."""
    reason: str
    """The same as a clause, for people."""
    renewal: str = ""
    """Which node takes over from one that reaches its time limit now, as a clause; empty if none does."""

    @property
    def words(self) -> str:
        """`reason` and `renewal` together."""
        return "; ".join(filter(None, (self.reason, self.renewal)))
