"""Chooses a pipeline trainer's arrangement for a number of ranks: the fastest one that the spec allows."""

from __future__ import annotations

from oakum_worker.chain import Chain
from oakum_worker.errors import TaskError
from oakum_worker.parallel.arranging import LayoutArranger
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, choose
from oakum_worker.parallel.pipeline.measuring import measure_chain, sizes_up_to
from oakum_worker.schedule_table import asked_schedules
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def layers_of(task: Task) -> Chain:
    """The task's chain. Raises `TaskError` if the task has no chain, the chain has no layers, or a parameter that
    requires a gradient is in none of its layers."""
    if task.chain is None:
        raise TaskError(
            "parallel.pipeline is asked for and the task does not name its layers: return "
            "Task(..., chain=oakum_worker.chain.Chain(...))"
        )
    if not len(task.chain.layers):
        raise TaskError("the task's chain has no layer: name the model's layers in Chain(layers=...)")
    held = {id(parameter) for layer in task.chain.layers for parameter in layer.parameters()}
    stray = [name for name, p in task.model.named_parameters() if p.requires_grad and id(p) not in held]
    if stray:
        others = " and others" if len(stray) > 3 else ""
        raise TaskError(
            f"{', '.join(stray[:3])}{others} belong to no layer of the task's chain: name the modules that hold "
            "them in Chain(layers=...), or freeze them"
        )
    return task.chain


class Arranger(LayoutArranger[ModelProfile, Layout, Arrangement]):
    """Chooses how a pipeline trainer is arranged on any number of ranks, by what each of its layers costs."""

    _profile_type = ModelProfile

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """`task` has to name its layers in `Task.chain`. Raises `TaskError` if the chain is missing, is empty, or
        leaves out a parameter that is trained."""
        assert spec.parallel.pipeline is not None
        options = self._pipeline = spec.parallel.pipeline
        super().__init__(task, spec, options.memory_bytes)
        self._chain = layers_of(task)
        asked = asked_schedules(options.schedule)
        self.choices = Choices(
            global_batch=self.global_batch,
            memory_bytes=self.memory_bytes,
            schedules=asked.schedules,
            num_workers=None if options.stages == "auto" else options.stages,
            micro_batch=options.micro_batch or spec.micro_batch,
            recompute=None if options.recompute == "auto" else options.recompute,
            num_pipes=options.pipes,
            message_driven=asked.message_driven,
            in_flight=options.in_flight,
        )
        """The choices that the spec leaves to the search for a layout."""

    def name_of(self, layout: Layout) -> str:
        """The layout's schedule as the spec names it; `none` for replicas of one worker."""
        if layout.num_workers == 1:
            return "none"
        return self._pipeline.schedule if self.choices.message_driven else layout.schedule

    def _arrange(self, layout: Layout, world_size: int) -> Arrangement:
        return Arrangement(
            world_size=world_size,
            num_replicas=layout.num_replicas,
            schedule=layout.build(),
            cuts=layout.cuts,
            grid=layout.grid,
            recompute=layout.recompute,
            message_driven=self.choices.message_driven and layout.num_workers > 1,
            in_flight=self._pipeline.in_flight,
        )

    def _search(self, world_size: int) -> Layout:
        return choose(world_size, self.profile, self.links, self.choices, self.known.layouts)

    def _measure(self) -> ModelProfile:
        size = self.choices.micro_batch
        sizes = sizes_up_to(self._spec.global_batch) if size is None else [size]
        averages = self._spec.ema is not None
        return measure_chain(self._task, self._chain, sizes, self._precision, averages=averages)

    def _assume(self) -> ModelProfile:
        """A layer's time grows with its parameters' bytes and is never zero."""
        sizes = [sum(p.nbytes for p in layer.parameters()) for layer in self._chain.layers]
        costs = [1e-9 * (size + 1 + max(sizes) / 100) for size in sizes]
        layers = tuple(LayerCost((cost,), (2 * cost,), size) for cost, size in zip(costs, sizes, strict=True))
        return ModelProfile((self.choices.micro_batch or 1,), layers)
