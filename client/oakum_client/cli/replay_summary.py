"""Prints the summary of `oakum replay` for a person."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from oakum_client.cli.output import console, table
from oakum_client.cli.units import count, duration
from oakum_solver.replay.export import (
    achieved_over_whole,
    finished,
    gaps,
    learning_cost,
    loss_hours,
    mean_completion_s,
    not_optimal,
    parts_over_whole,
    share,
    solve_ms,
)
from oakum_solver.replay.quantities import ratio
from oakum_solver.replay.result import LearntCurves, ReplayResult

if TYPE_CHECKING:
    from rich.table import Table

_CAUSES = {
    "startup": "Starting up",
    "grow": "Grow stalls",
    "shrink": "Shrink stalls",
    "preemption": "Preemption stalls",
    "unallocated": "Granted to nobody",
}


def print_summary(result: ReplayResult) -> None:
    """Print the heading, key figures, the use of the idle node-time, plans, trainers and notes."""
    screen = console()
    screen.print(_heading(result))
    screen.print()
    screen.print(_key_figures(result))
    screen.print()
    screen.print(_node_time(result))
    screen.print()
    if result.learnt is not None:
        screen.print(_learnt(result, result.learnt))
    screen.print(f"{_plans(result)}\n{_trainers(result)}\nReplayed in {duration(result.wall_s)}.")
    if result.notes:
        screen.print("\nNotes:")
        for note in result.notes:
            screen.print(f"  {note}", soft_wrap=True)


def _heading(result: ReplayResult) -> str:
    cut = f" ({_hours(result.cut_hours)} of maintenance cut out)" if result.cut_hours else ""
    return (
        f"{result.log}: {_hours(result.hours)}{cut} of {count(result.nodes)} {_unit(result)}s, "
        f"{count(result.events)} events\n"
        f"policy {result.policy}, cost {result.cost}, objective {result.objective}, "
        f"look-ahead {duration(result.look_ahead_s)}"
    )


def _key_figures(result: ReplayResult) -> Table:
    figures = table("", "", "")
    figures.show_header = False
    reached = share(result.efficiency, result.zero_cost_bound)
    equivalent = f"{result.equivalent_nodes:,.1f}"
    figures.add_row(
        "Efficiency", _percent(result.efficiency), f"of what {equivalent} dedicated {_unit(result)}s would train"
    )
    figures.add_row(
        "Zero-cost bound",
        _percent(result.zero_cost_bound),
        f"without any stall; {_percent(reached)} of it reached",
    )
    used = share(result.used_node_hours, result.idle_node_hours)
    figures.add_row("Used", _percent(used), f"of {count(result.idle_node_hours)} idle {_unit(result)}-hours")
    if result.whole_idle_hours is not None:
        whole = f"{count(result.whole_idle_hours)} of these slot-hours in nodes idle as a whole"
        figures.add_row("Parts over whole nodes", ratio(parts_over_whole(result)), whole)
    if result.whole_achieved is not None:
        alone = "of what the same trainers achieve with whole nodes only"
        figures.add_row("Trained over whole nodes", ratio(achieved_over_whole(result)), alone)
    machine = share(result.equivalent_nodes, result.nodes)
    figures.add_row(
        f"Equivalent {_unit(result)}s", equivalent, f"idle on average, {_percent(machine)} of the machine"
    )
    return figures


def _node_time(result: ReplayResult) -> Table:
    rows = {"Productive": result.productive_node_hours}
    rows |= {_CAUSES[cause]: hours for cause, hours in loss_hours(result.losses).items()}
    unit = _unit(result).upper()
    listing = table(f"IDLE {unit}-TIME", f"{unit}-HOURS", "SHARE", right=(f"{unit}-HOURS", "SHARE"))
    for name, hours in rows.items():
        listing.add_row(name, f"{hours:,.1f}", _percent(share(hours, result.idle_node_hours)))
    return listing


def _unit(result: ReplayResult) -> str:
    """What the replay's numbers count: nodes, or slots where the log has parts of nodes."""
    return "node" if result.whole_idle_hours is None else "slot"


def _learnt(result: ReplayResult, learnt: LearntCurves) -> str:
    settled = (
        f"after {_hours(learnt.settled_after_h)} plans were as good as with known curves"
        if math.isfinite(learnt.settled_after_h)
        else "plans never became as good as with known curves"
    )
    cost, as_known = _percent(learning_cost(result)), _percent(learnt.as_known)
    return (
        f"Curves learnt: efficiency {_percent(learnt.efficiency)}, {cost} less than with known ones; {settled}, "
        f"and they were in {as_known} of the time."
    )


def _plans(result: ReplayResult) -> str:
    number = len(result.steps.solve_s)
    if not number:
        return "Plans: none."
    p50, p99, longest = (duration(value / 1000) for value in solve_ms(result.steps).values())
    return (
        f"Plans: {count(number)}, {count(not_optimal(result.steps))} not proven optimal{_gap(result)}; "
        f"half made within {p50}, 99 of 100 within {p99}, the longest took {longest}."
    )


def _gap(result: ReplayResult) -> str:
    median = gaps(result.steps)["p50"]
    has_gap = not_optimal(result.steps) > 0 and math.isfinite(median)
    return f" (median gap {median:.2g})" if has_gap else ""


def _trainers(result: ReplayResult) -> str:
    num_trainers, num_finished = len(result.trainers), len(finished(result))
    if all(trainer.wanted_samples is None for trainer in result.trainers):
        ends = f"{count(num_trainers)} endless"
    elif num_finished:
        mean = duration(mean_completion_s(result))
        ends = f"{num_finished} of {num_trainers} finished, {mean} after submission on average"
    else:
        ends = f"none of {num_trainers} finished"
    return f"Trainers: {ends}; {count(result.rescales)} rescales, {result.samples:.4g} samples."


def _hours(hours: float) -> str:
    return duration(3600 * hours)


def _percent(part: float) -> str:
    return f"{part:.1%}" if math.isfinite(part) else "-"
