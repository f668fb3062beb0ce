"""Which arrangement a pipeline trainer gets for a number of ranks, as its spec asks for: a pure function.

All ranks come to the same one without asking each other, since it depends on the spec, the chain and the number of
ranks alone.
"""

from __future__ import annotations

from functools import lru_cache

from oakum_worker.chain import Chain
from oakum_worker.errors import ScheduleError, TaskError
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.pipeline.partition import partition
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.spec import TrainerSpec

_MICRO_BATCHES_PER_STAGE = 2
"""Where the spec does not say: the bubble is then below a third, and micro-batches are still large."""


class Arranger:
    """Arranges generations of one trainer."""

    def __init__(self, chain: Chain, spec: TrainerSpec) -> None:
        assert spec.parallel.pipeline is not None
        self._spec = spec
        self._options = spec.parallel.pipeline
        # Until layers are measured: what a layer takes goes about with its parameters, and nothing takes no time.
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in chain.layers]
        self._costs = [size + 0.01 * max(sizes) + 1e-9 for size in sizes]
        if not sizes:
            raise TaskError("the task's chain has no layer: name the model's layers in Chain(layers=...)")

    @lru_cache(maxsize=64)  # noqa: B019  lives as long as the trainer
    def __call__(self, world_size: int) -> Arrangement:
        """The arrangement of a generation of so many ranks. Raises `TaskError` where there is none."""
        wanted = self._options.stages
        most = len(self._costs) if wanted == "auto" else wanted
        complaint: ScheduleError | None = None
        for num_workers in range(min(most, world_size), 0, -1):
            try:
                return self._arranged(world_size, num_workers)
            except ScheduleError as error:
                complaint = complaint or error
        raise TaskError(f"the model cannot be spread over {world_size} ranks: {complaint}")

    def _arranged(self, world_size: int, num_workers: int) -> Arrangement:
        num_replicas = world_size // num_workers
        schedule = self._schedule(num_workers, num_replicas)
        return Arrangement(
            world_size=world_size,
            num_replicas=num_replicas,
            schedule=schedule,
            cuts=partition(self._costs, schedule.num_stages),
            recompute=self._options.recompute is True,
            message_driven=self._options.schedule == "message-driven" and num_workers > 1,
        )

    def _schedule(self, num_workers: int, num_replicas: int) -> Schedule:
        """For as many micro-batches as the spec asks for, or a few more where the schedule has none for these."""
        name = self._options.schedule
        if num_workers == 1 or name in ("auto", "message-driven"):
            name = "1f1b"
        wanted = self._num_micro_batches(num_workers, num_replicas)
        complaint: ScheduleError | None = None
        for num_micro_batches in range(wanted, wanted + 2 * num_workers + 1):
            try:
                return build(name, num_workers=num_workers, num_micro_batches=num_micro_batches)
            except ScheduleError as error:
                complaint = complaint or error
        assert complaint is not None
        raise complaint

    def _num_micro_batches(self, num_workers: int, num_replicas: int) -> int:
        share = -(-self._spec.global_batch // num_replicas)
        size = self._options.micro_batch or self._spec.micro_batch
        if size is not None:
            return -(-share // size)
        return max(1, min(share, _MICRO_BATCHES_PER_STAGE * num_workers))
