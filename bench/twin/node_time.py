"""What became of the idle node-time, by cause."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Use(StrEnum):
    """What one node's time went into while no foreground job had the node."""

    PRODUCTIVE = "productive"
    """A member of a generation that trains."""
    STALL = "stall"
    """A member of a generation that forms, or ready and not yet let in."""
    START_UP = "start-up"
    PENDING = "pending"
    """A fragment's job was submitted and had not begun."""
    LEAVING = "leaving"
    """A fragment that was told to go, until the scheduler has cleared the node."""
    FOUND_LATE = "found late"
    """Idle, and the service had not been shown that."""
    LAUNCHED_LATE = "launched late"
    """Idle and granted, and no job was submitted for it."""
    TIME_LIMIT = "time limit"
    """What it took to leave at a job's time limit and to get a new fragment as far as training."""
    WRONG_FORECAST = "wrong forecast"
    """Pending, start-up and stalls of a fragment that was gone before it had trained for as long."""
    UNALLOCATED = "nobody's"
    """Idle and granted to nobody."""


_TO_PAY = (Use.STALL, Use.START_UP, Use.PENDING)
_LIMITED = (*_TO_PAY, Use.LEAVING, Use.FOUND_LATE, Use.LAUNCHED_LATE)


class NodeTime:
    """Accounts for each node's time within its holes. Times are virtual seconds."""

    def __init__(self, num_nodes: int) -> None:
        self.node_s = dict.fromkeys(Use, 0.0)
        self._use: list[Use | None] = [None] * num_nodes
        """None while no hole is there."""
        self._since = [0.0] * num_nodes
        self._shown_at = [0.0] * num_nodes
        self._granted_at: dict[int, float] = {}
        self._is_limited = [False] * num_nodes
        self._of_fragment: list[dict[Use, float]] = [{} for _ in range(num_nodes)]

    def begin_hole(self, node: int, now: float) -> None:
        """The node becomes idle, which nobody has seen yet."""
        self._turn(node, Use.FOUND_LATE, now)

    def end_hole(self, node: int, now: float) -> None:
        """A foreground job takes the node, whatever of ours is still there."""
        self._turn(node, None, now)
        self._end_fragment(node)
        self._is_limited[node] = False

    def show(self, node: int, now: float) -> None:
        """The service is shown that the node is idle."""
        if self._use[node] is Use.FOUND_LATE:
            self._turn(node, Use.UNALLOCATED, now)
            self._shown_at[node] = now

    def grant(self, nodes: Iterable[int], now: float) -> None:
        """A new plan grants these nodes, and no others."""
        self._granted_at = {node: self._granted_at.get(node, now) for node in nodes}

    def limit(self, node: int) -> None:
        """The fragment on the node has come near its job's time limit."""
        self._is_limited[node] = self._use[node] is not None

    def turn(self, node: int, use: Use, now: float) -> None:
        """From now on the node's time goes into `use`, if a hole is there."""
        if self._use[node] is not None:
            self._turn(node, use, now)

    def end_fragment(self, node: int, now: float) -> None:
        """The fragment's job is gone, which nobody has seen yet."""
        if self._use[node] is not None:
            self._turn(node, Use.FOUND_LATE, now)
            self._end_fragment(node)

    def close(self, now: float) -> None:
        """Account for the time up to `now`."""
        for node, use in enumerate(self._use):
            if use is not None:
                self._turn(node, use, now)
                for cause, seconds in self._of_fragment[node].items():
                    self.node_s[cause] += seconds
                self._of_fragment[node] = {}

    def _turn(self, node: int, use: Use | None, now: float) -> None:
        before, since = self._use[node], self._since[node]
        self._use[node], self._since[node] = use, now
        if before is Use.UNALLOCATED:
            granted_at = self._granted_at.get(node)
            late_s = 0.0 if granted_at is None else now - max(since, granted_at)
            self._add(node, Use.LAUNCHED_LATE, late_s)
            self._add(node, Use.UNALLOCATED, now - since - late_s)
        elif before is not None:
            self._add(node, before, now - since)
        if use is Use.PRODUCTIVE:
            self._is_limited[node] = False

    def _add(self, node: int, use: Use, seconds: float) -> None:
        if self._is_limited[node] and use in _LIMITED:
            self.node_s[Use.TIME_LIMIT] += seconds
        elif use in _TO_PAY or use is Use.PRODUCTIVE:
            mine = self._of_fragment[node]
            mine[use] = mine.get(use, 0.0) + seconds
        else:
            self.node_s[use] += seconds

    def _end_fragment(self, node: int) -> None:
        mine, self._of_fragment[node] = self._of_fragment[node], {}
        cost_s = sum(mine.get(use, 0.0) for use in _TO_PAY)
        has_paid = mine.get(Use.PRODUCTIVE, 0.0) >= cost_s
        for use, seconds in mine.items():
            self.node_s[use if has_paid or use is Use.PRODUCTIVE else Use.WRONG_FORECAST] += seconds
