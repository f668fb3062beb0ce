"""Finds the layout that trains a model fastest on a number of ranks: replicas, stages, schedule, micro-batch size,
recomputation.

Each candidate is predicted by simulation, T = (F + p) C_f + (B + p) C_b + max_i unoverlapped_i (Chimera,
arXiv:2107.06925, section 3.4), except those that would be too slow even without bubbles and messages. A candidate
that does not fit into memory is not chosen; activations are computed again only where they do not fit otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.arranging import EQUAL, best_of
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.costs import ModelProfile, StageCosts, layer_costs_s, stage_costs
from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.pipeline.partition import partition
from oakum_worker.parallel.pipeline.schedules import SCHEDULES, ScheduleSize, build, exists
from oakum_worker.parallel.pipeline.simulation import Simulation, simulate
from oakum_worker.parallel.tensor.grids import ONE_RANK, Grid
from oakum_worker.schedule_table import ONE_F_ONE_B, TRAITS, TRIED, ScheduleTraits, Scheme

_PERIODS_SIMULATED = 3
"""Number of periods of 2D micro-batches that are simulated. Each further period lengthens a step by the same
time."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the search for a layout may choose, and within which limits. A field that is None is left to the
    search."""

    global_batch: int
    memory_bytes: float = math.inf
    """Memory of one rank, in bytes."""
    schedules: tuple[str, ...] = TRIED
    num_workers: int | None = None
    """Ranks of a replica; fewer if there are fewer ranks, or no schedule for so many. None: the fastest number."""
    micro_batch: int | None = None
    """Samples of a micro-batch. None: the fastest of the measured sizes."""
    recompute: bool | None = None
    """Whether activations are recomputed. None: only where they do not fit otherwise."""
    num_pipes: int = 2
    """Pipes of Chimera; 2 is used if the number of workers is no multiple of it."""
    message_driven: bool = False
    """Whether workers process messages in the order of arrival. Every worker but the last may then hold the
    activations of all micro-batches in flight."""
    in_flight: int | None = None
    """Most micro-batches in flight at once with `message_driven`. None: as many as there are stages."""


@dataclass(frozen=True, slots=True)
class LayoutCandidate:
    """A layout that may be chosen: how the ranks divide a batch and the model."""

    num_replicas: int
    num_workers: int
    """Ranks of one replica."""
    num_stages: int
    """Stages of the model; more than workers if a worker has several stages of one pipe."""
    schedule: str
    scheme: Scheme | None
    """Chimera's scheme; None for other schedules."""
    num_micro_batches: int
    """Micro-batches of one replica, as `build` counts them: one per backward pass."""
    micro_batch: int
    """Samples of the largest micro-batch."""
    recompute: bool = False
    num_pipes: int = 1
    """Number of pipes: 2 or more for Chimera, else 1."""

    @property
    def traits(self) -> ScheduleTraits:
        """The properties of the candidate's schedule, by its name."""
        return TRAITS[self.schedule]

    @property
    def num_ranks(self) -> int:
        """Number of ranks that compute; the others are spare."""
        return self.num_replicas * self.num_workers

    def build(self, num_micro_batches: int | None = None) -> Schedule:
        """The schedule of a replica, for `num_micro_batches` or by default for the candidate's own number."""
        return build(
            self.schedule,
            num_workers=self.num_workers,
            num_micro_batches=num_micro_batches or self.num_micro_batches,
            stages_per_worker=self.num_stages // self.num_workers,
            scheme=self.scheme or "auto",
            num_pipes=max(2, self.num_pipes),
        )

    def exists(self, num_micro_batches: int) -> bool:
        """Whether the schedule can be built for `num_micro_batches`."""
        return exists(self.schedule, self.num_workers, num_micro_batches, self.scheme, max(2, self.num_pipes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(LayoutCandidate):
    """A candidate with the layers of its stages and its predicted times and memory."""

    grid: Grid = ONE_RANK
    """The grid that each worker is."""
    cuts: tuple[range, ...] = ()
    """The layers of each stage; empty where a worker computes the whole model without knowing its layers."""
    predicted_step_s: float
    samples_per_s: float
    peak_bytes: tuple[int, ...]
    """Predicted peak memory of each worker of a replica, on each rank of its grid, in bytes."""
    fits: bool
    """Whether every worker's `peak_bytes` is within the memory of a rank."""

    @property
    def num_ranks(self) -> int:
        """Number of ranks that compute; the others are spare."""
        return self.num_replicas * self.num_workers * self.grid.num_ranks

    @property
    def most_bytes(self) -> int:
        """Peak memory of the worker that needs most, in bytes."""
        return max(self.peak_bytes)


def choose(
    num_ranks: int,
    profile: ModelProfile,
    links: LinkCosts,
    choices: Choices,
    known: Mapping[int, Layout] = {},
) -> Layout:
    """The fastest layout that fits into memory on `num_ranks` ranks, of which some may stay spare; of layouts as
    fast the one with fewest workers, then with fewest ranks.

    If no layout fits, returns the one that needs least memory, with `fits` False. One worker per replica is always
    a candidate. Raises `ScheduleError` for a batch or a number of ranks below 1.

    `known` has the best layouts of other numbers of ranks. That of the largest number below `num_ranks` stands for
    all layouts of so many ranks, which are not searched again, unless the choices name a number of workers.

    Candidates are predicted in the order of their lower bounds, until a bound reaches the best predicted time.
    Unless the choices fix recomputation, a candidate that recomputes activations is left out if it would fit
    without.
    """
    refuse_none(num_ranks, choices.global_batch)
    layouts: list[Layout] = []
    counts = range(num_ranks, num_ranks + 1)
    if choices.num_workers is None:
        fewer = max((count for count in known if count < num_ranks), default=0)
        layouts, counts = [known[fewer]] if fewer else [], range(fewer + 1, num_ranks + 1)
    candidates = [candidate for count in counts for candidate in _candidates(count, profile, choices)]
    best_s = min((layout.predicted_step_s for layout in layouts if layout.fits), default=math.inf)
    promising = [(lower_bound_s(candidate, profile, links), candidate) for candidate in candidates]
    for least_s, candidate in sorted(promising, key=lambda pair: pair[0]):
        if least_s >= best_s:
            break
        plain = replace(candidate, recompute=False)
        if candidate.recompute and choices.recompute is None and predict(plain, profile, links, choices).fits:
            continue
        layout = predict(candidate, profile, links, choices)
        layouts.append(layout)
        if layout.fits:
            best_s = min(best_s, layout.predicted_step_s)
    return best_of(layouts, lambda layout: (layout.num_workers, layout.num_ranks))


def refuse_none(num_ranks: int, global_batch: int) -> None:
    """Raise `ScheduleError` for a batch or a number of ranks below 1."""
    if num_ranks < 1 or global_batch < 1:
        raise ScheduleError(f"{global_batch} samples on {num_ranks} ranks have no layout: give at least 1 of each")


def predict(candidate: LayoutCandidate, profile: ModelProfile, links: LinkCosts, choices: Choices) -> Layout:
    """The candidate with its predicted step time and memory, by simulation. If there are many micro-batches, only
    some are simulated, and the result is extrapolated to the others."""
    cuts = _cuts(profile, candidate.num_stages, candidate.micro_batch, candidate.recompute)
    costs = stage_costs(profile, cuts, candidate.micro_batch, links, recompute=candidate.recompute)
    number, period = candidate.num_micro_batches, 2 * candidate.num_workers
    simulated = _num_simulated(candidate, period)
    schedule = candidate.build(simulated)
    simulation = _simulate(schedule, candidate, costs, links)
    step_s, held_bytes = simulation.step, list(simulation.peak_activations)
    if simulated < number:
        shorter = _simulate(candidate.build(simulated - period), candidate, costs, links)
        periods = (number - simulated) // period
        step_s += periods * (simulation.makespan - shorter.makespan)
        before_bytes = zip(held_bytes, shorter.peak_activations, strict=True)
        held_bytes = [held + periods * (held - before) for held, before in before_bytes]
    step_s += _tied_s(schedule, candidate.num_replicas, costs, links)
    if choices.message_driven:
        most = min(choices.in_flight or candidate.num_stages, number)
        held_bytes = [*(most * held for held in costs.held_bytes[:-1]), held_bytes[-1]]
    peak_bytes = _peak_bytes(schedule, held_bytes, costs, _split_bytes(candidate, costs))
    return Layout(
        **asdict(candidate),
        cuts=cuts,
        predicted_step_s=step_s,
        samples_per_s=choices.global_batch / step_s if step_s else math.inf,
        peak_bytes=peak_bytes,
        fits=max(peak_bytes) <= choices.memory_bytes,
    )


def _num_simulated(candidate: LayoutCandidate, period: int) -> int:
    """Number of micro-batches to simulate: all, or fewer by a whole number of periods."""
    number, most = candidate.num_micro_batches, _PERIODS_SIMULATED * period
    fewer = most + (number - most) % period
    if fewer < number and all(candidate.exists(n) for n in (fewer, fewer - period)):
        return fewer
    return number


@lru_cache(maxsize=1024)
def _cuts(profile: ModelProfile, num_stages: int, micro_batch: int, recompute: bool) -> tuple[range, ...]:
    return partition(layer_costs_s(profile, micro_batch, recompute=recompute), num_stages)


def _simulate(schedule: Schedule, candidate: LayoutCandidate, costs: StageCosts, links: LinkCosts) -> Simulation:
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
            links.all_reduce_s(candidate.num_replicas * len(schedule.holders_of(stage)), size)
            for stage, size in enumerate(costs.parameter_bytes)
        ],
        activation=costs.held_bytes,
        split_activation=_split_bytes(candidate, costs),
    )


def _tied_s(schedule: Schedule, num_replicas: int, costs: StageCosts, links: LinkCosts) -> float:
    """Seconds by which summing the gradients of tied weights lengthens a step: they are summed after all others,
    since they need all of their stages."""
    seconds = 0.0
    for stages, size in costs.tied_bytes:
        holders = {worker for stage in stages for worker in schedule.holders_of(stage)}
        seconds += links.all_reduce_s(num_replicas * len(holders), size)
    return seconds


def _split_bytes(candidate: LayoutCandidate, costs: StageCosts) -> tuple[int, ...]:
    """Bytes per stage that the first part of a split backward pass recomputes and keeps for the second part.

    The first stage's first part computes nothing, so it keeps 0 bytes.
    """
    if not candidate.traits.splits_backward:
        return (0,) * candidate.num_stages
    return (0, *costs.working_bytes[1:])


def _peak_bytes(
    schedule: Schedule, held_bytes: list[float], costs: StageCosts, split_bytes: tuple[int, ...]
) -> tuple[int, ...]:
    """Peak bytes of each worker: the state of its stages, its kept activations, and its working memory.

    `held_bytes` are the kept activations of each worker. They include a stage's `split_bytes`, which are therefore
    not counted as working memory.
    """
    peaks = []
    for worker, activations in enumerate(held_bytes):
        stages = [stage for _, stage in schedule.stages_of(worker)]
        working = max(costs.working_bytes[stage] - split_bytes[stage] for stage in stages)
        peaks.append(int(activations) + working + sum(costs.state_bytes[stage] for stage in stages))
    return tuple(peaks)


def lower_bound_s(candidate: LayoutCandidate, profile: ModelProfile, links: LinkCosts) -> float:
    """A lower bound of the candidate's step time in seconds, computed without its schedule.

    A worker is idle until the first micro-batch has reached one of its stages. After the worker's last backward
    pass the micro-batch continues back to the first stage, whose gradients are summed only after that. Split
    backward passes may end with weight gradients on any stage, so this last part is left out for them.
    """
    cuts = _cuts(profile, candidate.num_stages, candidate.micro_batch, candidate.recompute)
    costs = stage_costs(profile, cuts, candidate.micro_batch, links, recompute=candidate.recompute)
    split = candidate.traits.splits_backward
    backward_s = [sum(parts) for parts in costs.split_s] if split else costs.backward_s
    forward_s = [min(one, two / 2) for one, two in zip(costs.forward_s, costs.doubled_s, strict=True)]
    pass_s = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    before_s = list(accumulate(costs.forward_s, initial=0.0))
    after_s = list(accumulate(costs.backward_s, initial=0.0))
    least_s = 0.0
    for held in _stages_of_workers(candidate):
        start_s = min(before_s[stage] for stage in held)
        end_s = 0.0 if split else min(after_s[stage] for stage in held)
        least_s = max(least_s, start_s + _least_work_s(candidate, [pass_s[stage] for stage in held]) + end_s)
    if not split:
        least_s += links.all_reduce_s(candidate.num_replicas * candidate.num_pipes, costs.parameter_bytes[0])
    return (1 - EQUAL) * least_s


def _stages_of_workers(candidate: LayoutCandidate) -> list[list[int]]:
    """For each worker, the numbers of the stages that it holds, those of the first pipe first."""
    per_worker = candidate.num_stages // candidate.num_workers
    size = ScheduleSize(candidate.num_workers, candidate.num_micro_batches, per_worker, candidate.num_pipes)
    held: list[list[int]] = [[] for _ in range(candidate.num_workers)]
    for pipe in SCHEDULES[candidate.schedule].placement(size):
        for stage, worker in enumerate(pipe):
            held[worker].append(stage)
    return held


def _least_work_s(candidate: LayoutCandidate, pass_s: list[float]) -> float:
    """Least seconds that one worker computes; `pass_s`: seconds of forward and backward pass per stage.

    Micro-batches are divided evenly among several pipes, so their numbers in two pipes differ by one at most.
    """
    number = candidate.num_micro_batches
    if candidate.num_pipes == 1:
        return number * sum(pass_s)
    in_each = max(0, number // candidate.num_pipes - 1)
    return in_each * sum(pass_s) + (number - candidate.num_pipes * in_each) * min(pass_s)


def _candidates(num_ranks: int, profile: ModelProfile, choices: Choices) -> Iterator[LayoutCandidate]:
    """All candidates that use exactly `num_ranks`. With a fixed number of workers, those with that number or the
    next smaller one that has any, in as many whole replicas as possible."""
    most_replicas = max(1, choices.global_batch // profile.smallest)
    if choices.num_workers is not None:
        for num_workers in range(min(choices.num_workers, num_ranks), 0, -1):
            num_replicas = min(num_ranks // num_workers, most_replicas)
            candidates = list(_candidates_of(num_replicas, num_workers, profile, choices))
            yield from candidates
            if candidates:
                return
        return
    for num_workers in range(1, num_ranks + 1):
        num_replicas, rest = divmod(num_ranks, num_workers)
        if not rest and num_replicas <= most_replicas:
            yield from _candidates_of(num_replicas, num_workers, profile, choices)


def _candidates_of(
    num_replicas: int, num_workers: int, profile: ModelProfile, choices: Choices
) -> Iterator[LayoutCandidate]:
    for schedule in _schedules(profile, choices) if num_workers > 1 else (ONE_F_ONE_B.name,):
        traits = TRAITS[schedule]
        num_stages = traits.stages_per_worker * num_workers
        num_pipes = (2 if num_workers % choices.num_pipes else choices.num_pipes) if traits.has_pipes else 1
        for scheme in SCHEDULES[schedule].schemes:
            if num_stages > len(profile.layers):
                continue
            candidate = LayoutCandidate(
                num_replicas, num_workers, num_stages, schedule, scheme, 0, 0, num_pipes=num_pipes
            )
            sizes = profile.micro_batches if choices.micro_batch is None else (choices.micro_batch,)
            several = {one: None for size in sizes if (one := _cut_batch(candidate, size, choices, profile))}
            for recompute in (False, True) if choices.recompute is None else (choices.recompute,):
                yield from (replace(one, recompute=recompute) for one in several)


def _schedules(profile: ModelProfile, choices: Choices) -> tuple[str, ...]:
    """Names of the schedules to choose from. If the layers' backward passes cannot be split, schedules that split
    them are left out, unless no other would remain."""
    able = tuple(name for name in choices.schedules if profile.can_split or not TRAITS[name].splits_backward)
    return able or choices.schedules


def _cut_batch(
    candidate: LayoutCandidate, micro_batch: int, choices: Choices, profile: ModelProfile
) -> LayoutCandidate | None:
    """The candidate with micro-batches of this size, or of the next smaller size whose number has a schedule.

    With `backward-halving`, forward passes have this size. All replicas have the same number of micro-batches; the
    size follows from the largest share. Returns None if a replica has too few samples.
    """
    smallest_share, rest = divmod(choices.global_batch, candidate.num_replicas)
    largest_share = smallest_share + bool(rest)
    most = max(1, smallest_share // profile.smallest)
    wanted = -(-largest_share // micro_batch) * (2 if candidate.scheme == "backward-halving" else 1)
    for number in range(min(wanted, most), most + 1)[: 2 * candidate.num_workers + 1]:
        if candidate.exists(number):
            return replace(candidate, num_micro_batches=number, micro_batch=-(-largest_share // number))
    return None
