"""This rank's part of the state of a pipeline of grids: its blocks of its stages' layers, and their moments."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.parallel.grid_stages.arranging import StackedArranger
from oakum_worker.parallel.grids.state import BlockState
from oakum_worker.parallel.holdings import Holdings, Part, Place
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.state import homes_of
from oakum_worker.parallel.whole_parameters import put_parameters
from oakum_worker.task import Task


class StackedState(BlockState):
    """The state of a trainer in pipelines of grids. A layer's tensors have a home of their own, and so have
    tensors that several layers share; every part is what a set of a grid's ranks has of one home.

    Buffers of no layer are whole on every rank.
    """

    def __init__(self, task: Task, chain: Chain, arranger: StackedArranger) -> None:
        homes, parts = homes_of(task.model.state_dict(keep_vars=True), chain)
        super().__init__(task, arranger, arranger.grids, homes, len(parts))
        self._users = {part.number: users for part, users in parts.items()}
        """Home -> the layers that use it."""
        self.arrangement = arranger(1)
        self.place = Place(self._holdings(self.arrangement), 0)

    def _holdings(self, arrangement: Arrangement) -> Holdings:
        return Holdings(tuple(self._parts_held(arrangement, rank) for rank in range(arrangement.world_size)))

    def _parts_held(self, arrangement: Arrangement, rank: int) -> tuple[Part, ...]:
        seat, layers = arrangement.seat(rank), arrangement.layers_of(rank)
        if seat is None:
            return ()
        homes = [home for home, users in self._users.items() if users & layers]
        return self.parts_of(arrangement.grid).of(seat.position, homes)

    def _install(self, rank: int) -> Mapping[str, nn.Parameter]:
        seat, layers = self.arrangement.seat(rank), self.arrangement.layers_of(rank)
        grid, parameters, held = self.arrangement.grid, {}, {}
        for name, kind in self._kinds.items():
            if seat is None or not self._users[self._homes[name]] & layers:
                parameters[name] = kind.empty("meta")
            elif grid.num_ranks == 1:
                parameters[name] = held[name] = kind.empty(self.device)
            else:
                conversion, like = self._grids.conversion(grid), kind.empty("meta")
                parameters[name] = held[name] = conversion.empty(name, like, seat.position, self.device)
        put_parameters(self._task.model, parameters)
        return held

    @property
    def _tells_moments(self) -> bool:
        seat = self.arrangement.seat(self.place.rank)
        return seat is not None and (seat.replica, seat.position) == (0, 0)
