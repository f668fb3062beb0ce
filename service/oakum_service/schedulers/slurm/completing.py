"""Nodes on which a job has ended and that Slurm may not have cleared yet."""

from __future__ import annotations

from collections.abc import Iterable

from oakum_service.schedulers.slurm.reading.state import SlurmState
from oakum_service.schedulers.slurm.snapshot import unfold

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

    def note_reading(self, state: SlurmState, began_s: float) -> None:
        """Forget the nodes that a reading shows free, or that have not become free for 5 minutes. A reading that
        began before the job's end was reported decides nothing."""
        if not self._told_s:
            return
        completing = {node.name for node in state.nodes if "COMPLETING" in node.states}
        for job in state.jobs:
            # A node may be idle while its job still completes: for the head node's epilog, or as Slurm tells of
            # nodes and of jobs at two moments. Until then the node counts as the job's.
            if "COMPLETING" in job.states:
                completing.update(unfold(job.nodes))
        self._told_s = {
            node: told_s
            for node, told_s in self._told_s.items()
            if told_s >= began_s or (node in completing and began_s - told_s < _CLEAR_WITHIN_S)
        }

    def __bool__(self) -> bool:
        return bool(self._told_s)
