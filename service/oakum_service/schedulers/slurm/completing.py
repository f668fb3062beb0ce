"""Nodes on which a job has ended and that Slurm may not have cleared yet."""

from __future__ import annotations

from collections.abc import Iterable

from oakum_service.schedulers.slurm.reading.state import SlurmNode

_CLEAR_WITHIN_S = 300.0
"""Time for a node's epilogs. A node that completes for longer calls for no more readings than others: a node that
does not answer may never complete."""


class CompletingNodes:
    """Remembers the nodes on which a job has ended until a reading shows them free; until then Slurm is read
    frequently.

    The head node's epilog runs at the same time as the nodes' epilogs, so the nodes become free a little later
    than it reports. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}

    def note_ended(self, nodes: Iterable[str], now_s: float) -> None:
        """Remember that a hook told of a job's end on the nodes."""
        self._told_s |= dict.fromkeys(nodes, now_s)

    def note_reading(self, nodes: Iterable[SlurmNode], began_s: float) -> None:
        """Forget the nodes that a reading shows free, or that have not become free for 5 minutes. A reading that
        began before the job's end was reported decides nothing."""
        completing = {node.name for node in nodes if "COMPLETING" in node.states}
        self._told_s = {
            node: told_s
            for node, told_s in self._told_s.items()
            if told_s >= began_s or (node in completing and began_s - told_s < _CLEAR_WITHIN_S)
        }

    def __bool__(self) -> bool:
        return bool(self._told_s)
