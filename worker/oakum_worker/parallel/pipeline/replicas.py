"""A step of a trainer whose model is split into stages: each replica computes its share of the batch.

A generation's arrangement assigns stages to ranks. The engine of this rank's seat computes; a stage's gradients
are summed over the ranks that hold the stage. The batch is divided among replicas as among the ranks of plain data
parallelism. Every replica cuts its share into the same number of micro-batches, as even as possible; where there
are fewer samples than micro-batches, the other micro-batches compute the batch's first sample with weight 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from oakum_worker.chain import Chain
from oakum_worker.parallel.chunks import Chunk, cut_evenly, share_of
from oakum_worker.parallel.divided_engine import DividedEngine
from oakum_worker.parallel.divided_state import DividedState
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.pipeline.engine import CountedMicroBatches, WorkerEngine
from oakum_worker.parallel.pipeline.gradients import StageGradients
from oakum_worker.parallel.pipeline.links import PeerLinks, pairs_of
from oakum_worker.parallel.pipeline.message_driven import MessageDrivenEngine
from oakum_worker.parallel.pipeline.scheduled import ScheduledEngine
from oakum_worker.parallel.step_engine import GlobalBatch, Reduced, StepVotes
from oakum_worker.parallel.subgroups import Subgroups


class ReplicaEngine(DividedEngine):
    """`StepEngine` of a pipeline trainer: computes this rank's stages for its replica's share of each batch. A
    spare rank computes nothing and only takes part in sums."""

    def __init__(self, chain: Chain, state: DividedState[Arrangement], arranger: Arranger) -> None:
        super().__init__(state, arranger)
        self._chain = chain
        self._state = state
        self._gradients: StageGradients | None = None
        self._work: CountedMicroBatches
        self._engine: WorkerEngine | None = None

    def chunks(self, num_samples: int) -> list[Chunk]:
        """The micro-batches of this rank's replica in a global batch of `num_samples`; empty on a spare rank."""
        arrangement = self._state.arrangement
        seat = arrangement.seat(self._state.place.rank)
        if seat is None:
            return []
        share = share_of(num_samples, seat.replica, arrangement.num_replicas)
        return cut_evenly(share, arrangement.schedule.num_micro_batches)

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """Compute forward and backward passes of this rank's stages; nothing on a spare rank. Gradients begin to
        be summed over the ranks. In a generation's first step, connects to the ranks with which this rank works.
        Raises `GroupError` if a rank is gone, and whatever the task's code raises."""
        if self._gradients is None:
            self._set_up()
        assert self._gradients is not None
        self._num_global, self._step_votes = batch.num_samples, votes
        self._gradients.begin()
        if self.look is not None and self._engine is not None:
            self.look.expect_from(self._gradients.parameters)
        with batch.in_stages(self.chunks(batch.num_samples)) as self._work:
            if self._engine is not None:
                self._engine.run(self._work)

    def finish(self) -> Reduced:
        """Wait until every `p.grad` of this rank is the gradient of the global batch's mean loss. Returns the mean
        loss and the sums of the ranks' votes.

        Raises `GroupError` if a rank is gone or ranks are at different steps.
        """
        assert self._gradients is not None
        # Numbers that this rank's last stage has computed; zeros on ranks without a last stage.
        own = self._work.loss_sum, self._work.num_counted, self._work.weight
        loss, num_samples, weight = own if self._speaks else (0.0, 0, 0.0)
        numbers = torch.tensor(
            [float(loss), num_samples, *self._step_votes().numbers, float(weight), *self.votes()],
            dtype=torch.float64,
        )
        return self._finished(numbers, self._num_global, self._gradients)

    def _disconnect(self) -> None:
        self._gradients, self._engine = None, None

    @property
    def _speaks(self) -> bool:
        """Whether the losses that this rank has computed count in the batch's loss."""
        return True

    def _set_up(self) -> None:
        """Connect to the ranks that share a replica or a stage with this rank."""
        self._connect(self._chain, self._subgroups)

    def _connect(self, chain: Chain, subgroups: Subgroups) -> None:
        """Connect to the ranks that share a replica or a stage with this rank and have its place in their grids,
        to compute layers of `chain`."""
        arrangement, rank = self._state.arrangement, self._state.place.rank
        size = arrangement.grid.num_ranks
        stages = range(arrangement.schedule.num_stages)
        holders = [arrangement.holders_of(stage, rank % size) for stage in stages]
        gradients = StageGradients(chain, arrangement.cuts, holders, rank, subgroups)
        seat = arrangement.seat(rank)
        if seat is not None:
            members = arrangement.ranks_of(seat.replica)[seat.position :: size]
            pairs = pairs_of(arrangement.schedule)
            links = PeerLinks(subgroups, members, seat.worker, pairs, self._state.device)
            self._engine = _engine_of(arrangement, seat.worker, chain, links, gradients)
        self._gradients = gradients


def _engine_of(
    arrangement: Arrangement, worker: int, chain: Chain, links: PeerLinks, gradients: StageGradients
) -> WorkerEngine:
    arguments = arrangement.schedule, worker, chain, arrangement.cuts, links, gradients.sync
    if arrangement.message_driven:
        limit = arrangement.in_flight
        return MessageDrivenEngine(*arguments, recompute=arrangement.recompute, limit=limit)
    return ScheduledEngine(*arguments, recompute=arrangement.recompute)
