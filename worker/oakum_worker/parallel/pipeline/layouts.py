"""Which layout trains a model fastest on so many ranks: replicas, stages, schedule, micro-batch, recomputation.

Every way that there is is predicted by simulation, T = (F + p) C_f + (B + p) C_b + max_i unoverlapped_i (Chimera,
arXiv:2107.06925, section 3.4), except those that would be too slow even without bubbles and messages. What does
not fit into memory is no choice; activations are computed again only where they do not fit otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.chimera import Scheme, placement
from oakum_worker.parallel.pipeline.costs import (
    Links,
    ModelProfile,
    StageCosts,
    layer_costs_s,
    stage_costs,
)
from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.pipeline.partition import partition
from oakum_worker.parallel.pipeline.schedules import build, exists, splits_backward
from oakum_worker.parallel.pipeline.simulation import Simulation, simulate

_SCHEMES: tuple[Scheme, ...] = ("concatenation", "forward-doubling", "backward-halving")
_PERIODS_SIMULATED = 3
"""Of 2D micro-batches each. After them a step grows by the same with each further one."""
_EQUAL = 1e-9
"""Times that differ by less, of each other, are the same."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a trainer may do."""

    global_batch: int
    memory_bytes: float = math.inf
    """Of one rank."""
    schedules: tuple[str, ...] = ("1f1b", "chimera")
    num_workers: int | None = None
    """Ranks of a replica, fewer only where there are fewer or it has no schedule; by default what is fastest."""
    micro_batch: int | None = None
    """Samples; by default the fastest of those measured."""
    recompute: bool | None = None
    """By default where activations do not fit otherwise."""
    interleaved_stages: int = 2
    """On each worker, of the interleaved schedule."""
    num_pipes: int = 2
    """Of Chimera; 2 where workers are no multiple of it."""
    message_driven: bool = False
    """Workers take what arrives, so that each but the last may come to hold all that is on its way."""
    in_flight: int | None = None
    """Micro-batches on their way at once then; by default as many as there are stages."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the ranks take a batch."""

    num_replicas: int
    num_workers: int
    """Ranks of one replica."""
    num_stages: int
    """Parts of the model; more than workers where a worker has several of them in one pipe."""
    schedule: str
    scheme: Scheme | None
    """Of Chimera."""
    num_micro_batches: int
    """Of one replica, as `build` counts them: what a backward pass takes."""
    micro_batch: int
    """Samples of the largest of them."""
    recompute: bool = False
    num_pipes: int = 1
    """Of Chimera 2 or more."""

    @property
    def num_ranks(self) -> int:
        """Those that compute; others are spare."""
        return self.num_replicas * self.num_workers

    def build(self, num_micro_batches: int | None = None) -> Schedule:
        """The schedule of a replica; for another number of micro-batches if one is given."""
        return build(
            self.schedule,
            num_workers=self.num_workers,
            num_micro_batches=num_micro_batches or self.num_micro_batches,
            stages_per_worker=self.num_stages // self.num_workers,
            scheme=self.scheme or "auto",
            num_pipes=max(2, self.num_pipes),
        )

    def exists(self, num_micro_batches: int) -> bool:
        """Whether it can be built for so many."""
        return exists(self.schedule, self.num_workers, num_micro_batches, self.scheme, max(2, self.num_pipes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Way):
    """A way, the layers of its stages, and what is predicted of it."""

    cuts: tuple[range, ...]
    predicted_step_s: float
    samples_per_s: float
    peak_bytes: tuple[int, ...]
    """Of each worker of a replica."""
    fits: bool
    """Whether that is within the memory of a rank."""


def choose(num_ranks: int, profile: ModelProfile, links: Links, choices: Choices) -> Layout:
    """The fastest layout that fits on that many ranks, of which some may stay spare.

    Where none fits it is the one that needs least memory, with `fits` False; one worker in each replica is always
    a way. Raises `ScheduleError` for a batch or a number of ranks below 1.
    """
    _check(num_ranks, choices)
    counts = range(1, num_ranks + 1) if choices.num_workers is None else (num_ranks,)
    ways = (way for count in counts for way in _ways(count, profile, choices))
    found = _fastest(None, ways, profile, links, choices)
    assert found is not None
    return found


def best_layouts(num_ranks: int, profile: ModelProfile, links: Links, choices: Choices) -> tuple[Layout, ...]:
    """What `choose` gives for each number of ranks from 1 to `num_ranks`."""
    _check(num_ranks, choices)
    best: list[Layout] = []
    for count in range(1, num_ranks + 1):
        before = best[-1] if best and choices.num_workers is None else None
        found = _fastest(before, _ways(count, profile, choices), profile, links, choices)
        assert found is not None
        best.append(found)
    return tuple(best)


def _check(num_ranks: int, choices: Choices) -> None:
    if num_ranks < 1 or choices.global_batch < 1:
        raise ScheduleError(
            f"{choices.global_batch} samples on {num_ranks} ranks have no layout: give at least 1 of each"
        )


def _fastest(
    found: Layout | None, ways: Iterable[Way], profile: ModelProfile, links: Links, choices: Choices
) -> Layout | None:
    """The best of one found before and of the ways, the most promising of which are predicted first."""
    promising = [(lower_bound_s(way, profile, links), way) for way in ways]
    for fastest_s, way in sorted(promising, key=lambda pair: pair[0]):
        if found is not None and found.fits and fastest_s >= found.predicted_step_s:
            break
        plain = replace(way, recompute=False)
        if way.recompute and choices.recompute is None and predict(plain, profile, links, choices).fits:
            continue
        found = _better(found, predict(way, profile, links, choices))
    return found


def curve(layouts: tuple[Layout, ...]) -> tuple[tuple[int, float], ...]:
    """The points (ranks, samples per second) of a trainer's scalability curve: where more ranks are faster.

    `layouts` are of 1, 2, ... ranks. There is no point where the model does not fit or ranks would be spare.
    """
    points: list[tuple[int, float]] = []
    for num_ranks, layout in enumerate(layouts, start=1):
        if layout.fits and (not points or layout.samples_per_s > (1 + _EQUAL) * points[-1][1]):
            points.append((num_ranks, layout.samples_per_s))
    return tuple(points)


def predict(way: Way, profile: ModelProfile, links: Links, choices: Choices) -> Layout:
    """Simulate a step. Of very many micro-batches some are simulated; the rest goes on like the last ones."""
    cuts = _cuts(profile, way.num_stages, way.micro_batch, way.recompute)
    costs = stage_costs(profile, cuts, way.micro_batch, links, recompute=way.recompute)
    number, period = way.num_micro_batches, 2 * way.num_workers
    simulated = _num_simulated(way, period)
    schedule = way.build(simulated)
    simulation = _simulate(schedule, way, costs, links)
    step_s, held_bytes = simulation.step, list(simulation.peak_activations)
    if simulated < number:
        shorter = _simulate(way.build(simulated - period), way, costs, links)
        periods = (number - simulated) // period
        step_s += periods * (simulation.makespan - shorter.makespan)
        before_bytes = zip(held_bytes, shorter.peak_activations, strict=True)
        held_bytes = [held + periods * (held - before) for held, before in before_bytes]
    step_s += _tied_s(schedule, way.num_replicas, costs, links)
    if choices.message_driven:
        most = min(choices.in_flight or way.num_stages, number)
        held_bytes = [*(most * held for held in costs.held_bytes[:-1]), held_bytes[-1]]
    peak_bytes = _peak_bytes(schedule, held_bytes, costs, _split_bytes(way, costs))
    return Layout(
        **{field.name: getattr(way, field.name) for field in fields(Way)},
        cuts=cuts,
        predicted_step_s=step_s,
        samples_per_s=choices.global_batch / step_s if step_s else math.inf,
        peak_bytes=peak_bytes,
        fits=max(peak_bytes) <= choices.memory_bytes,
    )


def _num_simulated(way: Way, period: int) -> int:
    """As many micro-batches as there are, or fewer by some periods."""
    number, most = way.num_micro_batches, _PERIODS_SIMULATED * period
    fewer = most + (number - most) % period
    if fewer < number and all(way.exists(n) for n in (fewer, fewer - period)):
        return fewer
    return number


@lru_cache(maxsize=1024)
def _cuts(profile: ModelProfile, num_stages: int, micro_batch: int, recompute: bool) -> tuple[range, ...]:
    return partition(layer_costs_s(profile, micro_batch, recompute=recompute), num_stages)


def _simulate(schedule: Schedule, way: Way, costs: StageCosts, links: Links) -> Simulation:
    return simulate(
        schedule,
        costs.forward_s,
        costs.backward_s,
        doubled=costs.doubled_s,
        inputs=[inputs_s for inputs_s, _ in costs.split_s],
        weights=[weights_s for _, weights_s in costs.split_s],
        latency=links.latency_s,
        transfer=costs.transfer_s,
        sync=[
            links.all_reduce_s(way.num_replicas * len(schedule.holders_of(stage)), size)
            for stage, size in enumerate(costs.parameter_bytes)
        ],
        activation=costs.held_bytes,
        split_activation=_split_bytes(way, costs),
    )


def _tied_s(schedule: Schedule, num_replicas: int, costs: StageCosts, links: Links) -> float:
    """How long weights that several stages have are summed, after all others: they wait for all of the stages."""
    seconds = 0.0
    for stages, size in costs.tied_bytes:
        holders = {worker for stage in stages for worker in schedule.holders_of(stage)}
        seconds += links.all_reduce_s(num_replicas * len(holders), size)
    return seconds


def _split_bytes(way: Way, costs: StageCosts) -> tuple[int, ...]:
    """What is computed again for the first part of a split backward pass, and kept until the second.

    The first stage's first part has nothing to do.
    """
    if not splits_backward(way.schedule):
        return (0,) * way.num_stages
    return (0, *costs.working_bytes[1:])


def _peak_bytes(
    schedule: Schedule, held_bytes: list[float], costs: StageCosts, split_bytes: tuple[int, ...]
) -> tuple[int, ...]:
    """Of each worker: the state of all stages that it holds, and what it keeps and works on of micro-batches.

    `held_bytes` are of each worker. What `split_bytes` says of a stage is in them, and not counted as worked on.
    """
    peaks = []
    for worker, activations in enumerate(held_bytes):
        stages = [stage for _, stage in schedule.stages_of(worker)]
        working = max(costs.working_bytes[stage] - split_bytes[stage] for stage in stages)
        peaks.append(int(activations) + working + sum(costs.state_bytes[stage] for stage in stages))
    return tuple(peaks)


def _better(found: Layout | None, other: Layout) -> Layout:
    """The faster one of those that fit, else the smaller one; of equally fast ones that with fewer stages."""
    if found is None or other.fits > found.fits:
        return other
    if not found.fits:
        return other if max(other.peak_bytes) < max(found.peak_bytes) else found
    gain = found.predicted_step_s - other.predicted_step_s
    equal = abs(gain) <= _EQUAL * found.predicted_step_s
    wins = other.num_workers < found.num_workers if equal else gain > 0
    return other if other.fits and wins else found


def lower_bound_s(way: Way, profile: ModelProfile, links: Links) -> float:
    """What the way cannot be faster than, found without its schedule.

    A worker has nothing to do until a first micro-batch has come to one of its stages. After its last backward
    pass a micro-batch goes back from there to the first stage, whose gradients are summed only then; but split
    backward passes may end with gradients of weights on any stage.
    """
    cuts = _cuts(profile, way.num_stages, way.micro_batch, way.recompute)
    costs = stage_costs(profile, cuts, way.micro_batch, links, recompute=way.recompute)
    split = splits_backward(way.schedule)
    backward_s = [sum(parts) for parts in costs.split_s] if split else costs.backward_s
    forward_s = [min(one, two / 2) for one, two in zip(costs.forward_s, costs.doubled_s, strict=True)]
    pass_s = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    before_s = list(accumulate(costs.forward_s, initial=0.0))
    after_s = list(accumulate(costs.backward_s, initial=0.0))
    least_s = 0.0
    for worker in range(way.num_workers):
        held = _stages_of(way, worker)
        start_s = min(before_s[stage] for stage in held)
        end_s = 0.0 if split else min(after_s[stage] for stage in held)
        least_s = max(least_s, start_s + _least_work_s(way, [pass_s[stage] for stage in held]) + end_s)
    if not split:
        least_s += links.all_reduce_s(way.num_replicas * way.num_pipes, costs.parameter_bytes[0])
    return (1 - _EQUAL) * least_s


def _stages_of(way: Way, worker: int) -> list[int]:
    """Those on a worker, as the schedules place them."""
    if way.schedule == "chimera":
        return [pipe.index(worker) for pipe in placement(way.num_workers, way.num_pipes)]
    if way.schedule == "zero-bubble-v":
        return [worker, way.num_stages - 1 - worker]
    return list(range(worker, way.num_stages, way.num_workers))


def _least_work_s(way: Way, pass_s: list[float]) -> float:
    """Of one worker. Chimera's pipes have as many of the micro-batches each, and one more or less at most."""
    number = way.num_micro_batches
    if way.schedule != "chimera":
        return number * sum(pass_s)
    in_each = max(0, number // way.num_pipes - 1)
    return in_each * sum(pass_s) + (number - way.num_pipes * in_each) * min(pass_s)


def _ways(num_ranks: int, profile: ModelProfile, choices: Choices) -> Iterator[Way]:
    """All ways that use exactly so many ranks; with a fixed number of workers, as many as that can use."""
    most_replicas = max(1, choices.global_batch // profile.smallest)
    if choices.num_workers is not None:
        for num_workers in range(min(choices.num_workers, num_ranks), 0, -1):
            num_replicas = min(num_ranks // num_workers, most_replicas)
            ways = list(_ways_of(num_replicas, num_workers, profile, choices))
            yield from ways
            if ways:
                return
        return
    for num_workers in range(1, num_ranks + 1):
        num_replicas, rest = divmod(num_ranks, num_workers)
        if not rest and num_replicas <= most_replicas:
            yield from _ways_of(num_replicas, num_workers, profile, choices)


def _ways_of(num_replicas: int, num_workers: int, profile: ModelProfile, choices: Choices) -> Iterator[Way]:
    for schedule in _schedules(profile, choices) if num_workers > 1 else ("1f1b",):
        per_worker = {"interleaved": choices.interleaved_stages, "zero-bubble-v": 2}.get(schedule, 1)
        num_stages = per_worker * num_workers
        for scheme in _SCHEMES if schedule == "chimera" else (None,):
            if num_stages > len(profile.layers):
                continue
            num_pipes = 1
            if schedule == "chimera":
                num_pipes = 2 if num_workers % choices.num_pipes else choices.num_pipes
            way = Way(num_replicas, num_workers, num_stages, schedule, scheme, 0, 0, num_pipes=num_pipes)
            sizes = profile.micro_batches if choices.micro_batch is None else (choices.micro_batch,)
            found = {sized: None for size in sizes if (sized := _sized(way, size, choices, profile))}
            for recompute in (False, True) if choices.recompute is None else (choices.recompute,):
                yield from (replace(sized, recompute=recompute) for sized in found)


def _schedules(profile: ModelProfile, choices: Choices) -> tuple[str, ...]:
    """Those to choose from. Where layers refuse to be split, the schedules that need it are no choice."""
    able = tuple(name for name in choices.schedules if profile.can_split or not splits_backward(name))
    return able or choices.schedules


def _sized(way: Way, micro_batch: int, choices: Choices, profile: ModelProfile) -> Way | None:
    """The way with micro-batches of that size, or smaller ones if the schedule does not exist for their number.

    Where backward passes are halved it is forward passes that take that size. None where a replica has too few
    samples. Each replica has as many micro-batches, so that with shares of different sizes one sample more may be
    in one of them.
    """
    smallest_share, rest = divmod(choices.global_batch, way.num_replicas)
    largest_share = smallest_share + bool(rest)
    most = max(1, smallest_share // profile.smallest)
    wanted = -(-largest_share // micro_batch) * (2 if way.scheme == "backward-halving" else 1)
    for number in range(min(wanted, most), most + 1)[: 2 * way.num_workers + 1]:
        if way.exists(number):
            return replace(way, num_micro_batches=number, micro_batch=-(-largest_share // number))
    return None
