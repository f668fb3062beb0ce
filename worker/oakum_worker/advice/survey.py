"""Makes all measurements of a task that the advisor needs, and reports each step when it begins and when it
ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from oakum_worker.advice.algorithms import Forward, algorithms, forward_replaced
from oakum_worker.advice.layer_trials import LayerTrial, SkippedAlgorithm, try_unit
from oakum_worker.advice.units import Unit, units_of
from oakum_worker.devices import device_memory_bytes, device_name, undisturbed_clock
from oakum_worker.errors import TaskError
from oakum_worker.profiling.alternating import Compared, compare
from oakum_worker.profiling.grid_profile import GridsProfile, profile_grids
from oakum_worker.profiling.layout_profile import profile_layouts
from oakum_worker.profiling.micro_batch import largest_that_fits
from oakum_worker.profiling.micro_batch_probe import Footprint, Probe
from oakum_worker.profiling.refusal import refuse_without_gradients
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task, load_task
from oakum_worker.task_checks import describe
from oakum_worker.torch_internals import tree_leaves

_TURN_S = 0.05
"""Seconds for which a size is timed at a time, or one pass of it."""
_CLOSE = 0.02
"""A size is advised that no other is faster than by more than this share."""
_MOST_TRIED_AT = 256
"""Samples at which layers' algorithms are measured at most."""

Report = Callable[[dict[str, Any]], None]
"""Takes what is to be said of a check, ready for JSON."""


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """The measurements of one micro-batch size of the task as it is."""

    samples: int
    working_bytes: int
    """What it adds at its peak to weights, gradients and the optimizer's state."""
    sample_bytes: int
    """Of the samples themselves, a part of `working_bytes`."""
    seconds: float
    """Forward and backward pass."""


@dataclass(frozen=True, slots=True)
class MeasuredLayer:
    """The measured algorithms of a layer, or of several layers that are alike, for one number of samples."""

    names: list[str]
    kind: str
    samples: int
    trials: list[LayerTrial]
    skipped: list[SkippedAlgorithm]


@dataclass(frozen=True, slots=True)
class Survey:
    """All measurements of a task on this machine."""

    device: str
    limit_bytes: int
    share: int
    """Samples of a rank in a step on the fewest nodes."""
    num_samples: int
    """Of the data set."""
    weight_bytes: int
    """Weights and buffers."""
    gradient_bytes: int
    optimizer_bytes: int
    smallest: int
    """Samples that a micro-batch has at least."""
    smallest_working_bytes: int
    """What the smallest micro-batch adds, whether or not it fits."""
    largest: int
    """Samples of the largest micro-batch that fits as the task is; 0 if none does."""
    sizes: list[MeasuredSize]
    """Those that fit, by size."""
    uncertainty: float
    """The share by which a size may be faster than the one that seems the fastest; 0 if none is."""
    update_s: float
    """The optimizer's step."""
    layers: list[MeasuredLayer]
    precisions: dict[str, float]
    """Precision -> samples/s at the fastest micro-batch; without those that do not run here."""
    layouts: list[dict[str, Any]]
    """The fastest layout of 1, 2, ... nodes: of grids for a spec with `parallel.tensor`, else of pipelines; empty
    if the task does not name its layers."""


class Surveyor:
    """Measures one task."""

    def __init__(self, spec: TrainerSpec, limit_bytes: int | None, report: Report, *, compiles: bool) -> None:
        """`limit_bytes` is what one rank may use, by default what the device has."""
        self._spec = spec.model_copy(update={"compile": False})
        self._given_bytes = limit_bytes
        self._report = report
        self._compiles = compiles

    def survey(self) -> Survey:
        """Measure everything. Raises `TaskError` where the task's code fails, and `SpecError` where the spec
        trains without gradients. Returns the measurements."""
        refuse_without_gradients(self._spec)
        torch.set_num_threads(self._spec.threads_per_rank)
        task = self._step("building the task", lambda: load_task(self._spec))
        device = next(task.model.parameters()).device
        limit = self._given_bytes or device_memory_bytes(device)
        share = -(-self._spec.global_batch // (self._spec.min_nodes * self._spec.ranks_per_node))
        weights = sum(tensor.nbytes for tensor in (*task.model.parameters(), *task.model.buffers()))
        gradients = sum(parameter.nbytes for parameter in task.model.parameters() if parameter.requires_grad)
        probe = Probe(task, self._spec, limit)
        smallest = min(probe.smallest, share)
        least = self._step("measuring the smallest mini-batch", lambda: self._least(task, smallest, device))
        largest = self._step("finding the largest mini-batch that fits", lambda: _largest(probe, smallest, share))
        candidates = candidate_sizes(smallest, largest, share, self._spec.micro_batch)
        sizes, uncertainty = self._sizes(task, probe, candidates, share)
        update_s = probe.overhead_s(clock=undisturbed_clock(device), times=15)
        layers = self._layers(task, smallest, largest or smallest)
        return Survey(
            device=device_name(device),
            limit_bytes=limit,
            share=share,
            num_samples=len(task.dataset),
            weight_bytes=weights,
            gradient_bytes=gradients,
            optimizer_bytes=max(least.static_bytes - weights - gradients, 0),
            smallest=smallest,
            smallest_working_bytes=least.working_bytes,
            largest=largest,
            sizes=sizes,
            uncertainty=uncertainty,
            update_s=update_s,
            layers=layers,
            precisions=self._precisions(task, sizes, limit),
            layouts=self._layouts(limit, named=task.chain is not None),
        )

    def check(self, chosen: Mapping[str, str], sizes: Sequence[int]) -> list[dict[str, Any]]:
        """Measure the task at these sizes, as it is and with the chosen algorithms (module name -> algorithm).

        The two take turns. A size that does not fit has no bytes; one that does not run with the chosen algorithms
        says why. Raises `TaskError` where the task's own code fails.
        """
        torch.set_num_threads(self._spec.threads_per_rank)
        task = self._step("building the task again", lambda: load_task(self._spec))
        limit = self._given_bytes or device_memory_bytes(next(task.model.parameters()).device)
        return [
            self._step(
                f"training on {size:,} samples with the chosen algorithms",
                partial(self._checked, task, chosen, size, limit),
            )
            for size in sizes
        ]

    def _checked(self, task: Task, chosen: Mapping[str, str], size: int, limit: int) -> dict[str, Any]:
        verdict: dict[str, Any] = {
            "samples": size,
            "peak_bytes": None,
            "seconds": None,
            "plain_s": None,
            "uncertainty": None,
            "why": None,
        }
        plain = Probe(task, self._spec, limit)
        fits_plainly = plain.footprint(size) is not None
        try:
            forwards = _forwards(task, chosen)
            with _replaced(forwards):
                probe = Probe(task, self._spec, limit)
                footprint = probe.footprint(size)
            if footprint is None:
                return verdict

            def time_once(forwards: Forwards) -> float:
                with _replaced(forwards):
                    return self._pass_s(task, probe if forwards else plain, size)

            compared = compare([forwards, *([()] if fits_plainly else [])], time_once, close=_CLOSE)
        except Exception as error:
            return {**verdict, "why": describe(error)}
        return {
            **verdict,
            "peak_bytes": footprint.static_bytes + footprint.working_bytes,
            "seconds": compared.seconds[forwards],
            "plain_s": compared.seconds.get(()),
            "uncertainty": compared.uncertainty,
        }

    def _pass_s(self, task: Task, probe: Probe, size: int) -> float:
        """Seconds of the shortest of some passes: other work on the machine has hardly disturbed it."""
        clock = undisturbed_clock(next(task.model.parameters()).device)
        return min(probe.pass_times(size, _TURN_S, fewest=1, clock=clock))

    def _step(self, name: str, run: Callable[[], Any], detail: Callable[[Any], str] = lambda _: "") -> Any:
        self._report({"check": name, "state": "begun", "patience_s": None})
        began_s = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - began_s
        self._report({"check": name, "state": "done", "seconds": seconds, "detail": detail(result)})
        return result

    def _least(self, task: Task, smallest: int, device: torch.device) -> Footprint:
        footprint = Probe(task, self._spec, device_memory_bytes(device)).footprint(smallest)
        if footprint is None:
            raise TaskError(
                f"training on {smallest} samples takes more than the whole memory of this machine: measure on a "
                "larger one, or make the model smaller"
            )
        return footprint

    def _sizes(
        self, task: Task, probe: Probe, sizes: Sequence[int], share: int
    ) -> tuple[list[MeasuredSize], float]:
        """(measurements of all sizes that fit, the share by which another size may be faster than the one that
        seems fastest)."""
        footprints = {size: footprint for size in sizes if (footprint := probe.footprint(size)) is not None}
        if not footprints:
            return [], 0.0
        passes = {size: -(-share // size) for size in footprints}
        compared: Compared[int] = self._step(
            f"training on {len(footprints)} sizes in turn",
            partial(
                compare,
                list(footprints),
                lambda size: passes[size] * self._pass_s(task, probe, size),
                close=_CLOSE,
            ),
            lambda compared: f"{compared.fastest:,} samples, in {compared.rounds} rounds",
        )
        measured = [
            MeasuredSize(
                size, footprint.working_bytes, _sample_bytes(task, size), compared.seconds[size] / passes[size]
            )
            for size, footprint in footprints.items()
        ]
        return measured, compared.uncertainty

    def _layers(self, task: Task, smallest: int, largest: int) -> list[MeasuredLayer]:
        high = min(largest, _MOST_TRIED_AT)
        layers = []
        for size in sorted({max(smallest, high // 4), high}):
            for unit in self._units(task, size):
                trials, skipped = self._step(
                    f"trying {unit.names[0]} ({unit.kind}) on {size:,} samples",
                    partial(try_unit, unit, compiles=self._compiles),
                    lambda result: f"{len(result[0])} algorithms",
                )
                layers.append(MeasuredLayer(unit.names, unit.kind, size, trials, skipped))
        return layers

    def _units(self, task: Task, size: int) -> list[Unit]:
        batch = _read(task, size)
        task.model.train()

        def run() -> None:
            with torch.no_grad():
                task.loss(task.model, batch)

        try:
            return units_of(task.model, run)
        except Exception as error:
            raise TaskError(f"the loss of {size} samples raised {describe(error)}: correct the task") from error

    def _precisions(self, task: Task, sizes: Sequence[MeasuredSize], limit: int) -> dict[str, float]:
        """Precision -> samples/s at the fastest size. The precisions are timed one after the other, the spec's
        own first."""
        if not sizes:
            return {}
        best = max(sizes, key=lambda one: one.samples / one.seconds).samples
        probes: dict[str, Probe] = {}
        for precision in dict.fromkeys((self._spec.precision, "float32", "bfloat16")):
            probe = Probe(task, self._spec.model_copy(update={"precision": precision}), limit)
            try:
                self._step(f"training in {precision}", partial(self._pass_s, task, probe, best))
            except TaskError:
                continue  # no kernel for it here
            probes[precision] = probe
        compared: Compared[str] = self._step(
            f"comparing {' and '.join(probes)}",
            partial(compare, list(probes), lambda name: self._pass_s(task, probes[name], best), enough_s=5.0),
        )
        return {precision: best / seconds for precision, seconds in compared.seconds.items()}

    def _layouts(self, limit: int, *, named: bool) -> list[dict[str, Any]]:
        if self._spec.parallel.tensor is not None:
            search = partial(profile_grids, self._spec, memory_bytes=limit)
            grids: GridsProfile = self._step("searching grids of ranks", search)
            return [asdict(layout) for layout in grids.layouts]
        if not named:
            return []
        profile = self._step("searching pipeline layouts", lambda: profile_layouts(self._spec, memory_bytes=limit))
        return [asdict(layout) for layout in profile.layouts]


def candidate_sizes(smallest: int, largest: int, share: int, present: int | None = None) -> list[int]:
    """Micro-batches to time, in rising order: what even cuts of the share into k parts make, `smallest`, and the
    `present` one if there is one. Empty if `largest` is less than `smallest`.

    The fewest parts that fit and the next three numbers of them are tried, then each half as many again.
    """
    if largest < smallest:
        return []
    fewest = -(-share // largest)
    numbers = [fewest, fewest + 1, fewest + 2, fewest + 3]
    while -(-share // numbers[-1]) > smallest:
        numbers.append(-(-numbers[-1] * 3 // 2))
    sizes = {-(-share // number) for number in numbers} | ({present} if present is not None else set())
    return sorted({smallest, *(size for size in sizes if smallest < size <= largest)})


def _largest(probe: Probe, smallest: int, share: int) -> int:
    if probe.footprint(share) is not None:
        return share
    return largest_that_fits(range(smallest, share), lambda size: probe.footprint(size) is not None) or 0


Forwards = tuple[tuple[nn.Module, Forward], ...]
"""Modules, each with what takes its forward pass's place."""


def _forwards(task: Task, chosen: Mapping[str, str]) -> Forwards:
    modules = dict(task.model.named_modules())
    every = {name: algorithms(modules[name], attends=True, compiles=True) for name in chosen}
    return tuple(
        (modules[name], next(one for one in every[name] if one.name == wanted).of(modules[name]))
        for name, wanted in chosen.items()
    )


@contextmanager
def _replaced(forwards: Forwards) -> Iterator[None]:
    with ExitStack() as stack:
        for module, forward in forwards:
            stack.enter_context(forward_replaced(module, forward))
        yield


def _read(task: Task, size: int) -> Any:
    return task.read([index % len(task.dataset) for index in range(size)])


def _sample_bytes(task: Task, size: int) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(_read(task, size)) if isinstance(leaf, torch.Tensor))
