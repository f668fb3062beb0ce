"""A step of a trainer whose pipeline's stages are grids: the ranks of a grid compute each of its layers together.

Ranks with the same place in their grids form a pipeline, with links and sums of gradients of their own. All ranks
of a grid read their micro-batches in full and follow one schedule, so they call the collectives within the grid in
one order.
"""

from __future__ import annotations

from oakum_worker.chain import Chain
from oakum_worker.parallel.grid_stages.arranging import StackedArranger
from oakum_worker.parallel.grid_stages.state import StackedState
from oakum_worker.parallel.pipeline.replicas import ReplicaEngine
from oakum_worker.parallel.subgroups import NamedSubgroups
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.task import Task


class StackedEngine(ReplicaEngine):
    """`StepEngine` of a trainer in pipelines of grids. A spare rank computes nothing and only takes part in
    sums."""

    def __init__(
        self,
        task: Task,
        chain: Chain,
        state: StackedState,
        arranger: StackedArranger,
        *,
        keep_gathered: bool = False,
    ) -> None:
        """In each generation's first step `task.chain` is replaced by one that computes on this rank's blocks;
        `chain` is the user's own."""
        super().__init__(chain, state, arranger)
        self._task = task
        self._arranger = arranger
        self._keep_gathered = keep_gathered
        self._wires: Wires | None = None

    @property
    def received(self) -> int:
        """Elements that this rank has received within its grid in this generation."""
        return 0 if self._wires is None else self._wires.received

    @property
    def _speaks(self) -> bool:
        # All ranks of the last stage's grid have found the same loss.
        arrangement, rank = self._divided.arrangement, self._divided.place.rank
        return bool(rank % arrangement.grid.num_ranks == 0)

    def _disconnect(self) -> None:
        super()._disconnect()
        self._wires = None

    def _set_up(self) -> None:
        """Connect to the ranks of this rank's grid, and to those beside it in other grids."""
        arrangement, rank = self._divided.arrangement, self._divided.place.rank
        grid, chain = arrangement.grid, self._chain
        if grid.num_ranks > 1 and arrangement.seat(rank) is not None:
            members = arrangement.grid_of(rank)
            self._wires = Wires.form(grid, members, rank, self._subgroups, f"grid-{members[0]}")
            plan = self._arranger.grids.plan(grid)
            chain = plan.chain(chain, chain.layers, self._wires, keep_gathered=self._keep_gathered)
        self._task.chain = chain
        self._connect(chain, NamedSubgroups(self._subgroups, f"place-{rank % grid.num_ranks}"))
