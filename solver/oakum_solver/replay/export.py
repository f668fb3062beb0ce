"""Exports a replay's result for other programs: a JSON document, and the steps as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oakum_solver.replay.result import Losses, ReplayResult, ReplaySteps, TrainerOutcome

STEP_COLUMNS = (
    *("time_s", "idle_nodes", "used_nodes", "running_trainers", "rate", "value", "bound", "gap"),
    *("optimal", "solver", "solve_ms"),
)
_ROWS_AT_ONCE = 10_000


def as_document(result: ReplayResult) -> dict[str, Any]:
    """The result without its steps as a JSON document; None for undefined values, such as a mean over no
    trainer."""
    return {
        "log": result.log,
        "policy": result.policy,
        "cost": result.cost,
        "objective": result.objective,
        "look_ahead_s": _number(result.look_ahead_s),
        "events": result.events,
        "hours": _number(result.hours),
        "cut_hours": _number(result.cut_hours),
        "nodes": result.nodes,
        "idle_node_hours": _number(result.idle_node_hours),
        "used_node_hours": _number(result.used_node_hours),
        "productive_node_hours": _number(result.productive_node_hours),
        "equivalent_nodes": _number(result.equivalent_nodes),
        "samples": _number(result.samples),
        "achieved": _number(result.achieved),
        "achievable": _number(result.achievable),
        "efficiency": _number(result.efficiency),
        "zero_cost_bound": _number(result.zero_cost_bound),
        "used": _number(share(result.used_node_hours, result.idle_node_hours)),
        "productive": _number(share(result.productive_node_hours, result.idle_node_hours)),
        "loss": {cause: _number(part) for cause, part in loss_shares(result).items()},
        "rescales": result.rescales,
        "trainers_finished": len(finished(result)),
        "mean_completion_s": _number(mean_completion_s(result)),
        "solve_ms": {name: _number(value) for name, value in solve_ms(result.steps).items()},
        "not_optimal": not_optimal(result.steps),
        "gap": {name: _number(value) for name, value in gaps(result.steps).items()},
        "wall_s": _number(result.wall_s),
        "notes": list(result.notes),
        "trainers": [_trainer(trainer) for trainer in result.trainers],
        **({} if result.whole_idle_hours is None else {"parts": _parts(result)}),
        **({} if result.learnt is None else {"learnt": _learnt(result)}),
    }


def steps_csv(steps: ReplaySteps) -> Iterator[str]:
    """Yield CSV text: the header and one line for each step, some thousand lines at a time.

    `value` and `bound` are in the objective's unit over the look-ahead, `rate` in that unit per second. The fields
    of the bound are empty for a policy that has none.
    """
    yield ",".join(STEP_COLUMNS) + "\n"
    gaps = gap(steps)
    for start in range(0, len(steps.time_s), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            zip(
                _column(steps.time_s[part]),
                steps.idle_nodes[part].tolist(),
                steps.used_nodes[part].tolist(),
                steps.running_trainers[part].tolist(),
                _column(steps.rate[part]),
                _column(steps.value[part]),
                _column(steps.bound[part]),
                _column(gaps[part]),
                steps.optimal[part].astype(int).tolist(),
                steps.solver[part],
                _column(1000 * steps.solve_s[part]),
                strict=True,
            )
        )
        yield text.getvalue()


def gap(steps: ReplaySteps) -> NDArray[np.float64]:
    """(bound - value) / |bound| of each plan, as `Plan.gap`; NaN where there is no bound."""
    bound = np.where(np.isfinite(steps.bound), steps.bound, np.nan)
    distance = (bound - steps.value) / np.maximum(np.abs(bound), 1e-12)
    return np.where(bound <= steps.value, 0.0, distance)


def gaps(steps: ReplaySteps) -> dict[str, float]:
    """Median, 99th percentile and maximum of the plans' relative gaps, over the plans with a bound: keys `p50`,
    `p99`, `max`."""
    relative = gap(steps)
    return _spread(relative[np.isfinite(relative)])


def solve_ms(steps: ReplaySteps) -> dict[str, float]:
    """Median, 99th percentile and maximum of the plans' solve times in milliseconds: keys `p50`, `p99`, `max`."""
    return _spread(1000 * steps.solve_s)


def not_optimal(steps: ReplaySteps) -> int:
    """Number of plans that were not proven optimal."""
    return int(np.count_nonzero(~steps.optimal))


def loss_shares(result: ReplayResult) -> dict[str, float]:
    """Cause of a loss -> its share of the idle node-time."""
    return {cause: share(lost, result.idle_node_hours) for cause, lost in loss_hours(result.losses).items()}


def loss_hours(losses: Losses) -> dict[str, float]:
    """Cause of a loss -> node-hours."""
    return {
        "startup": losses.startup,
        "grow": losses.grow,
        "shrink": losses.shrink,
        "preemption": losses.preemption,
        "unallocated": losses.unallocated,
    }


def share(part: float, whole: float) -> float:
    """part / whole; NaN where `whole` is 0."""
    return part / whole if whole > 0 else math.nan


def finished(result: ReplayResult) -> list[TrainerOutcome]:
    """The outcomes of those trainers that trained their last sample."""
    return [trainer for trainer in result.trainers if trainer.end_s is not None]


def mean_completion_s(result: ReplayResult) -> float:
    """Mean seconds from a trainer's submission to its last sample, over the finished trainers; NaN where none
    finished."""
    times_s = [trainer.end_s - trainer.submit_s for trainer in result.trainers if trainer.end_s is not None]
    return sum(times_s) / len(times_s) if times_s else math.nan


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    """Median, 99th percentile and maximum; NaN for an empty array."""
    if not len(values):
        return dict.fromkeys(("p50", "p99", "max"), math.nan)
    p50, p99 = np.percentile(values, (50, 99))
    return {"p50": float(p50), "p99": float(p99), "max": float(values.max())}


def learning_cost(result: ReplayResult) -> float:
    """Share of U that is lost because curves have to be learnt; NaN where they were not, or U is 0."""
    return math.nan if result.learnt is None else 1.0 - share(result.learnt.efficiency, result.efficiency)


def _learnt(result: ReplayResult) -> dict[str, float | None]:
    learnt = result.learnt
    assert learnt is not None
    return {
        "efficiency": _number(learnt.efficiency),
        "cost": _number(learning_cost(result)),
        "settled_after_h": _number(learnt.settled_after_h),
        "as_known": _number(learnt.as_known),
        "explored": _number(learnt.explored),
    }


def parts_over_whole(result: ReplayResult) -> float:
    """Idle time of all slots over that of nodes idle as a whole; NaN where no node was, or nodes have no parts."""
    return math.nan if result.whole_idle_hours is None else share(result.idle_node_hours, result.whole_idle_hours)


def achieved_over_whole(result: ReplayResult) -> float:
    """A_e over that of the same trainers with whole nodes only; NaN where that is 0 or was not replayed."""
    return math.nan if result.whole_achieved is None else share(result.achieved, result.whole_achieved)


def _parts(result: ReplayResult) -> dict[str, float | None]:
    return {
        "idle_slot_hours": _number(result.idle_node_hours),
        "whole_node_slot_hours": _number(result.whole_idle_hours),
        "over_whole_nodes": _number(parts_over_whole(result)),
        **({} if result.whole_achieved is None else _on_whole_nodes(result)),
    }


def _on_whole_nodes(result: ReplayResult) -> dict[str, float | None]:
    return {
        "achieved_on_whole_nodes": _number(result.whole_achieved),
        "achieved_over_whole_nodes": _number(achieved_over_whole(result)),
    }


def _trainer(trainer: TrainerOutcome) -> dict[str, Any]:
    return {
        "name": trainer.name,
        "submit_s": _number(trainer.submit_s),
        "start_s": _number(trainer.start_s),
        "end_s": _number(trainer.end_s),
        "samples": _number(trainer.samples),
        "wanted_samples": _number(trainer.wanted_samples),
        "node_hours": _number(trainer.node_hours),
        "rescales": trainer.rescales,
    }


def _number(value: float | None) -> float | None:
    """The value; None for NaN and infinity, which JSON lacks."""
    return float(value) if value is not None and math.isfinite(value) else None


def _column(values: NDArray[np.float64]) -> list[str]:
    return [f"{value:.10g}" if math.isfinite(value) else "" for value in values.tolist()]
