"""A step of a trainer whose model is spread over stages: each replica takes its share of the batch through them.

A generation's arrangement says who does what. The engine of this rank's seat computes; gradients of a stage are
summed over the ranks that hold it. The batch is dealt to the replicas as to the ranks of plain data parallelism,
and a replica's share is cut into as many micro-batches as every other's, as even as they can be; where there are
fewer samples than micro-batches, the rest compute the batch's first sample and count it for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError
from oakum_worker.parallel.chunks import Chunk, cut_evenly
from oakum_worker.parallel.data import Reduced
from oakum_worker.parallel.layout import by_part
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.arranging import Arranger, Curve
from oakum_worker.parallel.pipeline.engine import Engine, MicroBatches
from oakum_worker.parallel.pipeline.gradients import StageGradients
from oakum_worker.parallel.pipeline.links import Links, pairs_of
from oakum_worker.parallel.pipeline.message_driven import MessageDrivenEngine
from oakum_worker.parallel.pipeline.scheduled import ScheduledEngine
from oakum_worker.parallel.pipeline.state import StageState
from oakum_worker.parallel.reshard import Places, exchange
from oakum_worker.parallel.subgroups import StoreSubgroups, Subgroups
from oakum_worker.sampler import share_of


def no_votes() -> tuple[int, ...]:
    """Nothing to count."""
    return ()


class ReplicaEngine:
    """Takes the part of `GradientReducer` for a pipeline trainer.

    A step is `begin`, `run` and `finish`, on every rank, spare ones included.
    """

    def __init__(self, chain: Chain, state: StageState, arranger: Arranger) -> None:
        self._chain = chain
        self._state = state
        self._arranger = arranger
        self.group: dist.ProcessGroup | None = None
        """Of all ranks of the generation; None for a rank alone."""
        self.votes: Callable[[], tuple[int, ...]] = no_votes
        """Asked once in each step for numbers to add up over the ranks; as many on every rank."""
        self.counted: tuple[int, ...] = ()
        """The last finished step's sums of them."""
        self.steps = 0
        """Steps whose gradients were complete. Weights may have changed since if the loop has counted fewer."""
        self._subgroups: Subgroups = _alone()
        self._gradients: StageGradients | None = None
        self._engine: Engine | None = None

    def join(
        self, group: dist.ProcessGroup | None, world_size: int, *, subgroups: Subgroups | None = None
    ) -> None:
        """Work over `group` from now on; None is a generation of one rank. Does not communicate."""
        self.group = group if world_size > 1 else None
        self._subgroups = subgroups if subgroups is not None and self.group is not None else _alone()
        self.counted = ()
        self._gradients, self._engine = None, None

    @property
    def predicted_curve(self) -> Curve:
        """See `Arranger.predicted_curve`: not to be asked for within a step."""
        return self._arranger.predicted_curve()

    def chunks(self, num_samples: int) -> list[Chunk]:
        """The micro-batches of this rank's replica, of a global batch of so many samples; none on a spare rank."""
        arrangement = self._state.arrangement
        seat = arrangement.seat(self._state.place.rank)
        if seat is None:
            return []
        share = share_of(num_samples, seat.replica, arrangement.num_replicas)
        return cut_evenly(share, arrangement.schedule.num_micro_batches)

    def begin(self, num_global: int, signal: int, flag: int = 0) -> None:
        """Start a step on a global batch of `num_global` samples. Raises `GroupError` when a rank is gone."""
        if self._gradients is None:
            self._set_up()
        assert self._gradients is not None
        self._num_global, self._signal, self._flag = num_global, signal, flag
        self._gradients.begin()

    def run(self, work: MicroBatches) -> None:
        """Compute this rank's part of the gradients. Nothing on a spare rank."""
        if self._engine is not None:
            self._engine.run(work)

    def finish(self, loss: torch.Tensor | float, num_samples: int) -> Reduced:
        """Wait until every `p.grad` is the global batch's.

        `loss` and `num_samples` are what this rank's last stage has computed of the mean and counted; zeros on
        ranks without one. Raises `GroupError` when a rank is gone.
        """
        assert self._gradients is not None
        numbers = torch.tensor(
            [float(loss), num_samples, self._signal, self._flag, *self.votes()], dtype=torch.float64
        )
        self._sum(numbers)
        self._gradients.finish()
        total, counted_samples, signal, flag, *counted = numbers.tolist()
        if counted_samples != self._num_global:
            raise GroupError(
                f"the ranks together took {counted_samples:g} samples of a batch of {self._num_global}: "
                "they are not at the same step"
            )
        self.counted = tuple(round(number) for number in counted)
        self.steps += 1
        return Reduced(total, round(signal), round(flag))

    def grad_norm(self) -> torch.Tensor:
        """Collective: the norm of the global batch's gradient, each parameter counted once; shape ()."""
        gradients = [p.grad for p in self._state.first_held if p.grad is not None]
        norms = [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
        square = (
            torch.stack(norms).double().square().sum().cpu() if norms else torch.zeros((), dtype=torch.float64)
        )
        self._sum(square)
        return square.sqrt().to(self._state.device)

    @contextmanager
    def whole_model(self) -> Iterator[bool]:
        """Collective: within it rank 0, and a rank alone, has the whole model; says whether this one does.

        That takes rank 0 the memory of the model's parameters for the time. Raises `GroupError` when a rank is
        gone.
        """
        if self.group is None:
            yield True
            return
        place, split = self._state.place, self._state.model_tensors()
        wanted = {t.path: t.empty(range(t.num_rows)) for t in split} if place.rank == 0 else {}
        parts = place.holdings.parts
        held = Places(list(place.holdings.first_holders().items()), self._state.model_parts())
        needed = Places([(part, 0) for part in parts], by_part(parts, split, wanted) if wanted else {})
        exchange(split, held, needed, self.group, place.rank)
        if place.rank:
            yield False
            return
        with self._state.borrowed(wanted):
            yield True

    def _sum(self, numbers: torch.Tensor) -> None:
        if self.group is None:
            return
        try:
            dist.all_reduce(numbers, group=self.group)
        except RuntimeError as error:
            raise GroupError(f"a rank was lost during a step: {error}") from error

    def _set_up(self) -> None:
        """Connect to the ranks that this one works with."""
        arrangement, rank = self._state.arrangement, self._state.place.rank
        holders = [arrangement.holders_of(stage) for stage in range(arrangement.schedule.num_stages)]
        gradients = StageGradients(self._chain, arrangement.cuts, holders, rank, self._subgroups)
        seat = arrangement.seat(rank)
        if seat is not None:
            ranks = arrangement.ranks_of(seat.replica)
            self._engine = self._engine_of(arrangement, ranks, seat.worker, gradients)
        self._gradients = gradients

    def _engine_of(
        self, arrangement: Arrangement, ranks: list[int], worker: int, gradients: StageGradients
    ) -> Engine:
        schedule = arrangement.schedule
        links = Links(self._subgroups, ranks, worker, pairs_of(schedule), self._state.device)
        arguments = schedule, worker, self._chain, arrangement.cuts, links, gradients.sync
        if arrangement.message_driven:
            limit = arrangement.in_flight
            return MessageDrivenEngine(*arguments, recompute=arrangement.recompute, limit=limit)
        return ScheduledEngine(*arguments, recompute=arrangement.recompute)


def _alone() -> Subgroups:
    return StoreSubgroups(dist.HashStore(), 0, dist.default_pg_timeout)
