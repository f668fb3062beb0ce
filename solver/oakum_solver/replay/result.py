"""What a replay tells: totals, one row for each plan, and each trainer's way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Losses:
    """Idle node-hours that trained nothing, by cause; with the productive ones they are all idle node-hours."""

    startup: float = 0.0
    """Nodes that had joined and were still starting up."""
    grow: float = 0.0
    """Stalls because nodes joined."""
    shrink: float = 0.0
    """Stalls because the plan took nodes away."""
    preemption: float = 0.0
    """Stalls because foreground jobs took nodes."""
    unallocated: float = 0.0
    """Nodes granted to nobody."""


@dataclass(frozen=True)
class Steps:
    """One row for each event at which a plan was made; arrays of equal length."""

    time_s: NDArray[np.float64]
    """Seconds since the start of the log, cuts taken out."""
    idle_nodes: NDArray[np.int64]
    used_nodes: NDArray[np.int64]
    """Nodes granted after the event."""
    running_trainers: NDArray[np.int64]
    rate: NDArray[np.float64]
    """What all trainers together make per second after the event, stalls aside, in the objective's unit."""
    value: NDArray[np.float64]
    bound: NDArray[np.float64]
    """Of the plan, in the objective's unit over the look-ahead; NaN for a policy that knows none."""
    optimal: NDArray[np.bool_]
    solve_s: NDArray[np.float64]
    solver: tuple[str, ...]
    """Who found the plan, for each step."""


@dataclass(frozen=True)
class TrainerOutcome:
    """What became of one trainer."""

    name: str
    submit_s: float
    start_s: float | None
    """When it first had nodes; None where it never had any. On the clock of `Steps.time_s`."""
    end_s: float | None
    """When its last sample was trained; None where the log ended first."""
    samples: float
    wanted_samples: float | None
    """None for an endless trainer."""
    node_hours: float
    """Granted to it."""
    rescales: int
    """Changes of its size, foreground jobs' included."""
    sizes: tuple[tuple[float, int], ...]
    """(time_s, nodes) at each change of its size, from its submission on."""


@dataclass(frozen=True)
class ReplayResult:
    """One replay of one log."""

    log: str
    """Name of the log's file."""
    policy: str
    cost: str
    objective: str
    look_ahead_s: float
    """Mean over the plans."""
    nodes: int
    """Nodes of the machine."""
    hours: float
    """Length of the log, cuts taken out."""
    cut_hours: float
    """Maintenance that was cut out."""
    events: int
    """Points in time at which nodes became idle or were taken, or trainers arrived or finished."""
    idle_node_hours: float
    used_node_hours: float
    """Granted to trainers."""
    productive_node_hours: float
    """Granted, started up and not stalled."""
    equivalent_nodes: float
    """N_eq: idle node-hours / hours."""
    samples: float
    achieved: float
    """A_e: what was trained, in the objective's unit."""
    achievable: float
    """A_s: what the same trainers achieve on N_eq dedicated nodes with the best split and no cost of rescaling."""
    efficiency: float
    """U = A_e / A_s; NaN where nothing could be achieved."""
    zero_cost_bound: float
    """U of the same log and trainers with every stall and start-up 0."""
    losses: Losses
    rescales: int
    trainers: tuple[TrainerOutcome, ...]
    steps: Steps
    wall_s: float
    notes: tuple[str, ...] = field(default=())
    """What was skipped, cut or assumed, as sentences for a person: `12 jobs larger than the machine skipped`."""
