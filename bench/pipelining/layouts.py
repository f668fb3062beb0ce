"""Layouts of one model on some ranks, each with the time of a step that is predicted of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile
from oakum_worker.parallel.pipeline.layouts import Choices, LayoutCandidate, predict
from oakum_worker.parallel.pipeline.schedules import SCHEDULES, exists
from oakum_worker.schedule_table import MESSAGE_DRIVEN, ONE_F_ONE_B, TRAITS
from pipelining.cases import Case, Runner

_NUM_LAYERS = 16
_NUM_MICRO_BATCHES = 8
"""Of all replicas together."""
_SCHEDULES = tuple((name, scheme) for name, kind in SCHEDULES.items() for scheme in kind.schemes)


def layout_cases(num_ranks: int, make: Callable[..., Case]) -> Iterator[Case]:
    """Cases of a model of equal layers, one for each layout that uses all of this many ranks."""
    for num_workers in (n for n in range(1, num_ranks + 1) if num_ranks % n == 0):
        for schedule, scheme in _SCHEDULES if num_workers > 1 else ((ONE_F_ONE_B.name, None),):
            halves = 2 if scheme == "backward-halving" else 1
            num_replicas = num_ranks // num_workers
            number = halves * _NUM_MICRO_BATCHES // num_replicas
            num_stages = num_workers * TRAITS[schedule].stages_per_worker
            if _NUM_LAYERS % num_stages or not exists(schedule, num_workers, number, scheme):
                continue
            way = LayoutCandidate(num_replicas, num_workers, num_stages, schedule, scheme, number, 2 // halves)
            runners: tuple[Runner, ...] = ("scheduled", MESSAGE_DRIVEN)
            for runner in runners if schedule == ONE_F_ONE_B.name else runners[:1]:
                yield _case(way, make, runner)


def _case(way: LayoutCandidate, make: Callable[..., Case], runner: Runner) -> Case:
    """The case of one layout, with its predicted step time.

    A layer sleeps equally long per sample in every layout; `make` gives the time for a pipeline over all ranks.
    """
    made = make(
        way.schedule,
        way.num_workers,
        way.num_micro_batches,
        (("scheme", way.scheme),) if way.scheme else (),
        runner=runner,
        layers=_NUM_LAYERS // way.num_stages,
        num_replicas=way.num_replicas,
    )
    # The largest micro-batch has two samples.
    made = replace(made, forward_s=made.forward_s * way.num_replicas * way.micro_batch / 2)
    forward_s = made.forward_s * way.num_workers / _NUM_LAYERS / way.micro_batch
    layer = LayerCost((forward_s,), (made.backward_ratio * forward_s,), parameter_bytes=1)
    profile = ModelProfile((1,), (layer,) * _NUM_LAYERS)
    # Messages and weights are next to nothing: what links take is left out.
    layout = predict(way, profile, LinkCosts(), Choices(2 * _NUM_MICRO_BATCHES))
    return replace(made, predicted_s=layout.predicted_step_s)
