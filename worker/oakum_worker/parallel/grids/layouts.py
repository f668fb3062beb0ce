"""Finds the grid, the replicas and the micro-batch with which a model trains fastest on a number of ranks.

Each candidate is predicted from measured products and links. With R replicas on grids of P ranks, a step takes

    n (sum over products of 3 t(MKN / P) + o_P(m) + received elements x bytes / bandwidth + messages x latency)

and the all-reduce of 1/P of the gradients over R ranks, for n micro-batches of m samples in each replica, where
o_P(m) is what a rank computes beside products; 2 t for a product of the model's own input. Memory is a rank's
share of the state and of the kept activations, and the largest product's tensors beside them. A candidate that
does not fit into a rank's memory is not chosen while another one fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.arranging import best_of
from oakum_worker.parallel.grids.costs import GridProfile, flops_of_rank, held_elements, product_s, traffic
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.layouts import Layout, refuse_none
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.schedule_table import ONE_F_ONE_B

MOST_IN_LINE, LARGEST_SQUARE, LARGEST_CUBE, MOST_SHARDS = 16, 8, 4, 16
"""Sides of the largest grids that are tried where the spec names none."""


@dataclass(frozen=True, slots=True)
class GridChoices:
    """What the search for a grid may choose, and within which limits."""

    global_batch: int
    memory_bytes: float = math.inf
    """Memory of one rank, in bytes."""
    asked: Grid | None = None
    """The only grid, in as many replicas as possible, while there are enough ranks for one. None: the fastest."""
    micro_batch: int | None = None
    """Samples of a micro-batch of a replica. None: the whole share of the replica, or as many as fit."""
    keep_gathered: bool = False
    able: frozenset[Grid] | None = None
    """The grids that the model goes onto; None: all."""


def grids_up_to(num_ranks: int) -> list[Grid]:
    """The grids to try for a trainer without a grid of its own choice: all of at most `num_ranks` ranks whose
    sides are within the limits of this module."""
    lines = [Grid("1d", side) for side in range(1, MOST_IN_LINE + 1)]
    squares = [Grid("2d", side) for side in range(2, LARGEST_SQUARE + 1)]
    cubes = [Grid("3d", side) for side in range(2, LARGEST_CUBE + 1)]
    shards = [Grid("shards", side) for side in range(2, MOST_SHARDS + 1)]
    return [grid for grid in (*lines, *squares, *cubes, *shards) if grid.num_ranks <= num_ranks]


def choose_grid(num_ranks: int, profile: GridProfile, links: LinkCosts, choices: GridChoices) -> Layout:
    """The fastest layout that fits into memory on `num_ranks` ranks, of which some may stay spare.

    If none fits, returns the one that needs least memory, with `fits` False. Raises `ScheduleError` for a batch or
    a number of ranks below 1, and where the model goes onto no grid.
    """
    refuse_none(num_ranks, choices.global_batch)
    layouts = list(_predictions(num_ranks, profile, links, choices))
    if not layouts:
        raise ScheduleError(f"the model goes onto no grid of {num_ranks} ranks or fewer")
    return _best(layouts)


def best_of_each(
    num_ranks: int, profile: GridProfile, links: LinkCosts, choices: GridChoices
) -> tuple[Layout, ...]:
    """For each grid that the choices allow on `num_ranks` ranks its best layout: those that fit first, by their
    step time, then the others, by their memory."""
    by_grid: dict[Grid, list[Layout]] = {}
    for layout in _predictions(num_ranks, profile, links, choices):
        by_grid.setdefault(layout.grid, []).append(layout)
    best = map(_best, by_grid.values())
    return tuple(
        sorted(best, key=lambda one: (not one.fits, one.predicted_step_s if one.fits else one.most_bytes))
    )


def _best(layouts: list[Layout]) -> Layout:
    return best_of(layouts, lambda one: (one.grid.num_ranks, one.num_ranks, one.num_micro_batches))


def candidates(num_ranks: int, choices: GridChoices) -> Iterator[tuple[Grid, int, int]]:
    """(grid, replicas, micro-batches of a replica) of every layout that may be chosen."""
    asked = choices.asked if choices.asked is not None and choices.asked.num_ranks <= num_ranks else None
    for grid in [asked] if asked is not None else grids_up_to(num_ranks):
        if choices.able is not None and grid not in choices.able:
            continue
        most_replicas = min(num_ranks // grid.num_ranks, choices.global_batch)
        for num_replicas in range(1 if asked is None else most_replicas, most_replicas + 1):
            share = -(-choices.global_batch // num_replicas)
            if choices.micro_batch is not None:
                yield grid, num_replicas, -(-share // choices.micro_batch)
                continue
            number = 1
            while number < share:
                yield grid, num_replicas, number
                number *= 2
            yield grid, num_replicas, share


def predict_grid(
    grid: Grid,
    num_replicas: int,
    num_micro_batches: int,
    profile: GridProfile,
    links: LinkCosts,
    choices: GridChoices,
) -> Layout:
    """The layout of `num_replicas` grids, each with `num_micro_batches` micro-batches in a step, with the step
    time and memory predicted for it."""
    costs_of = partial(_micro_batch_costs, profile, links, choices.keep_gathered)
    return _predict(grid, num_replicas, num_micro_batches, profile, links, choices, costs_of)


def _predictions(num_ranks: int, profile: GridProfile, links: LinkCosts, choices: GridChoices) -> Iterator[Layout]:
    # Numbers of replicas and micro-batches are many, the sizes of micro-batches that follow from them are few.
    costs_of = cache(partial(_micro_batch_costs, profile, links, choices.keep_gathered))
    for sizes in candidates(num_ranks, choices):
        yield _predict(*sizes, profile, links, choices, costs_of)


@dataclass(frozen=True, slots=True)
class _MicroBatchCosts:
    """What one micro-batch costs a rank of a grid."""

    pass_s: float
    """Seconds of its forward and backward pass."""
    peak_bytes: float
    """The most memory that it takes beside the state."""


def _micro_batch_costs(
    profile: GridProfile, links: LinkCosts, keep_gathered: bool, grid: Grid, samples: int
) -> _MicroBatchCosts:
    pass_s = profile.share_s(grid, samples)
    kept, largest = 0.0, 0.0
    for number, product in enumerate(profile.products):
        pass_s += product.num_passes * product_s(profile.speed, flops_of_rank(grid, product, samples))
        received = traffic(grid, product, number, samples, keep_gathered=keep_gathered)
        pass_s += links.transfer_s(received.elements * profile.itemsize) + received.steps * links.latency_s
        held = held_elements(grid, product, number, samples, keep_gathered=keep_gathered)
        kept += held.kept
        largest = max(largest, held.working)
    peak_bytes = samples * profile.activation_bytes / grid.num_ranks + (kept + largest) * profile.itemsize
    # Of the batch, a rank's own block is an activation.
    peak_bytes += samples * profile.input_bytes * (1 - 1 / grid.num_ranks)
    return _MicroBatchCosts(pass_s, peak_bytes)


def _predict(
    grid: Grid,
    num_replicas: int,
    num_micro_batches: int,
    profile: GridProfile,
    links: LinkCosts,
    choices: GridChoices,
    costs_of: Callable[[Grid, int], _MicroBatchCosts],
) -> Layout:
    share = -(-choices.global_batch // num_replicas)
    samples = -(-share // num_micro_batches)
    costs, size = costs_of(grid, samples), grid.num_ranks
    step_s = num_micro_batches * costs.pass_s + links.all_reduce_s(num_replicas, profile.parameter_bytes / size)
    peak_bytes = (2 * profile.parameter_bytes + profile.optimizer_bytes) / size + costs.peak_bytes
    return Layout(
        num_replicas=num_replicas,
        num_workers=1,
        num_stages=1,
        schedule=ONE_F_ONE_B.name,
        scheme=None,
        num_micro_batches=num_micro_batches,
        micro_batch=samples,
        grid=grid,
        predicted_step_s=step_s,
        samples_per_s=choices.global_batch / step_s if step_s else math.inf,
        peak_bytes=(int(peak_bytes),),
        fits=peak_bytes <= choices.memory_bytes,
    )
