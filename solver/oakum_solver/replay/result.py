"""The result of a replay: totals, one row for each plan, and the outcome of each trainer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Losses:
    """Idle node-hours that trained nothing, by cause. Together with the productive ones they are all idle
    node-hours."""

    startup: float = 0.0
    """Granted nodes that were still starting up."""
    grow: float = 0.0
    """Stalls because nodes joined."""
    shrink: float = 0.0
    """Stalls because the plan took nodes away."""
    preemption: float = 0.0
    """Stalls because foreground jobs took nodes."""
    unallocated: float = 0.0
    """Idle nodes that were granted to no trainer."""


@dataclass(frozen=True)
class ReplaySteps:
    """One row for each event at which a plan was made; arrays of equal length."""

    time_s: NDArray[np.float64]
    """Seconds since the start of the log, without the time that was cut out."""
    idle_nodes: NDArray[np.int64]
    used_nodes: NDArray[np.int64]
    """Number of nodes granted after the event."""
    running_trainers: NDArray[np.int64]
    rate: NDArray[np.float64]
    """What all trainers together train per second after the event, in the objective's unit; stalls are ignored."""
    value: NDArray[np.float64]
    bound: NDArray[np.float64]
    """The plan's bound, in the objective's unit over the look-ahead; NaN for a policy without bounds."""
    optimal: NDArray[np.bool_]
    solve_s: NDArray[np.float64]
    solver: tuple[str, ...]
    """The method that found each plan, as `Plan.solver`."""


@dataclass(frozen=True)
class TrainerOutcome:
    """What one trainer got in a replay: its times, samples, nodes and rescales."""

    name: str
    submit_s: float
    start_s: float | None
    """Time at which it first had nodes, on the clock of `ReplaySteps.time_s`; None where it never had any."""
    end_s: float | None
    """Time at which its last sample was trained; None where the log ended first."""
    samples: float
    wanted_samples: float | None
    """Samples that it was to train; None for an endless trainer."""
    node_hours: float
    """Node-hours granted to it."""
    rescales: int
    """Number of changes of its size, including those by foreground jobs."""
    sizes: tuple[tuple[float, int], ...]
    """(time_s, number of nodes) at its submission and at each change of its size."""


@dataclass(frozen=True)
class LearntCurves:
    """What the same trainers get where nobody knows their curves before they are measured."""

    efficiency: float
    """U, as `ReplayResult.efficiency`."""
    settled_after_h: float
    """Hours after which plans are as good as those of the true curves: `learning.Comparison.settled_after_s`."""
    as_known: float
    """Share of the time in which the plan in force was as good."""
    explored: float
    """Share of the trained node-time at sizes that plans tried because they had not been measured."""


@dataclass(frozen=True)
class ReplayResult:
    """The result of replaying one log: totals, losses, yardsticks, and what each trainer got."""

    log: str
    """Name of the log's file."""
    policy: str
    cost: str
    objective: str
    look_ahead_s: float
    """Mean look-ahead of the plans, in seconds."""
    nodes: int
    """Number of nodes of the machine."""
    hours: float
    """Length of the log in hours, without the time that was cut out."""
    cut_hours: float
    """Hours of maintenance that were cut out."""
    events: int
    """Number of times at which nodes became idle or were taken, or trainers arrived or finished."""
    idle_node_hours: float
    used_node_hours: float
    """Node-hours granted to trainers."""
    productive_node_hours: float
    """Node-hours granted to trainers, without start-up and stalls."""
    equivalent_nodes: float
    """N_eq: idle node-hours / hours."""
    samples: float
    achieved: float
    """A_e: the worth of all trained samples, in the unit of `accounts.sample_worth`."""
    achievable: float
    """A_s: what the same trainers achieve on N_eq dedicated nodes with the best split and no cost of rescaling."""
    efficiency: float
    """U = A_e / A_s; NaN where nothing could be achieved."""
    zero_cost_bound: float
    """U of the same log and trainers with every stall and start-up 0."""
    losses: Losses
    rescales: int
    trainers: tuple[TrainerOutcome, ...]
    steps: ReplaySteps
    wall_s: float
    learnt: LearntCurves | None = None
    """The same with curves that are learnt; None: not replayed."""
    whole_idle_hours: float | None = None
    """Those of the idle node-hours, which are then slot-hours, in which all of a node was idle; None where the log
    has no parts of nodes."""
    whole_achieved: float | None = None
    """A_e of the same trainers where each has whole nodes only; None: not replayed."""
    notes: tuple[str, ...] = field(default=())
    """What was skipped, cut or assumed, as sentences for a person: `12 jobs larger than the machine skipped`."""
