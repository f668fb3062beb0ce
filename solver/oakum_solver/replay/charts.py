"""All charts of a report, and those of losses and of solve times."""

from __future__ import annotations

import html
import math

import numpy as np

from oakum_solver.replay.chart import LEGEND_ABOVE, Chart, Figure, number, rounded
from oakum_solver.replay.export import loss_hours, loss_shares, solve_ms
from oakum_solver.replay.quantities import amount, count, milliseconds, percent
from oakum_solver.replay.result import ReplayResult
from oakum_solver.replay.time_charts import nodes_over_time, sizes, used_over_time

_SOLVE_BINS_PER_DECADE = 10
_SOLVER_COLOURS = ("used", "unallocated", "grow", "shrink", "preemption", "startup")
_CAUSES = {
    "startup": "starting up",
    "grow": "grow stalls",
    "shrink": "shrink stalls",
    "preemption": "preemption stalls",
    "unallocated": "granted to nobody",
}


def charts(result: ReplayResult) -> list[Chart]:
    """The charts for which the result has data, in the page's order."""
    drawn = [losses(result)]
    if len(result.steps.time_s) and result.hours > 0:
        drawn = [nodes_over_time(result), used_over_time(result), *drawn, solve_times(result)]
    if result.trainers and result.hours > 0:
        drawn.append(sizes(result))
    return drawn


def losses(result: ReplayResult) -> Chart:
    """Bar chart of the idle node-hours that trained nothing, by cause."""
    hours, shares = loss_hours(result.losses), loss_shares(result)
    causes = list(_CAUSES)[::-1]
    labels = [f" {amount(hours[cause])} ({percent(shares[cause])})" for cause in causes]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [number(hours[cause], 2) for cause in causes],
        "y": [_CAUSES[cause] for cause in causes],
        "text": labels,
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [f"var(--{cause})" for cause in causes]},
        "hovertemplate": "%{y}: %{x:,.1~f} node-hours<extra></extra>",
    }
    shares_text = ", ".join(f"{_CAUSES[cause]} {percent(shares[cause])}" for cause in _CAUSES)
    most = max(hours.values())
    layout = {
        # Leaves space for the labels to the right of the bars.
        "xaxis": {"title": {"text": "node-hours"}, "range": [0, 1.6 * most or 1], "nticks": 5, "tickformat": ","},
        "yaxis": {"automargin": True, "ticksuffix": "  ", "showgrid": False},
        "showlegend": False,
        "bargap": 0.35,
    }
    sentence = f"Of the idle node-time, trained nothing: {shares_text}."
    return Chart("losses", "Lost node-hours by cause", sentence, 300, {"data": [bars], "layout": layout})


def solve_times(result: ReplayResult) -> Chart:
    """Histogram of the plans' solve times on a logarithmic axis, by the method that found the plan."""
    steps, figures = result.steps, solve_ms(result.steps)
    # The clock returns 0 for times that it cannot resolve; a logarithmic axis needs a positive number.
    magnitudes = np.log10(np.maximum(1000 * steps.solve_s, 1e-3))
    low = math.floor(magnitudes.min())
    high = max(math.ceil(magnitudes.max()), low + 1)
    edges = np.linspace(low, high, (high - low) * _SOLVE_BINS_PER_DECADE + 1)
    solvers = np.array(steps.solver, dtype=object)
    names = sorted(set(steps.solver), key=lambda name: -int(np.count_nonzero(solvers == name)))
    traces = [
        {
            "type": "bar",
            "name": html.escape(name),
            "x": rounded((edges[:-1] + edges[1:]) / 2, 4),
            "y": np.histogram(magnitudes[solvers == name], edges)[0].tolist(),
            "width": 0.92 / _SOLVE_BINS_PER_DECADE,
            "customdata": [milliseconds(10**edge) for edge in edges[:-1]],
            "marker": {"color": f"var(--{_SOLVER_COLOURS[min(number, len(_SOLVER_COLOURS) - 1)]})"},
            "hovertemplate": "%{y:,d} plans from %{customdata}<extra>" + html.escape(name) + "</extra>",
        }
        for number, name in enumerate(names)
    ]
    highest = int(np.histogram(magnitudes, edges)[0].max())
    layout = {
        "barmode": "stack",
        "xaxis": {
            "title": {"text": "time to make a plan (logarithmic)"},
            "tickvals": list(range(low, high + 1)),
            "ticktext": [milliseconds(10.0**power) for power in range(low, high + 1)],
            "range": [low, high],
            "showgrid": False,
        },
        # Leaves space for the labels of the percentiles above the bars.
        "yaxis": {"title": {"text": "plans"}, "tickformat": ",d", "nticks": 6, "range": [0, 1.3 * highest]},
        "legend": LEGEND_ABOVE,
        "showlegend": True,
        **_marks(figures["p50"], figures["p99"], low, high),
    }
    sentence = (
        f"{count(len(steps.solve_s))} plans: half within {milliseconds(figures['p50'])}, 99 of 100 within "
        f"{milliseconds(figures['p99'])}, the longest took {milliseconds(figures['max'])}."
    )
    return Chart("solve-times", "Solve times", sentence, 300, {"data": traces, "layout": layout})


def _marks(p50_ms: float, p99_ms: float, low: int, high: int) -> Figure:
    """Shapes and labels for a histogram: a dotted line at each percentile, p50 labelled on its left, p99 lower and
    on its right."""
    shapes, annotations = [], []
    for name, value_ms, yshift in (("p50", p50_ms, 0), ("p99", p99_ms, -18)):
        x = math.log10(max(value_ms, 1e-3))
        line = {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper"}
        shapes.append({**line, "line": {"color": "var(--text)", "width": 1.5, "dash": "dot"}})
        to_the_left = x - low > (0.35 if name == "p50" else 0.65) * (high - low)
        place = {"x": x, "xanchor": "right" if to_the_left else "left", "y": 1, "yref": "paper", "yanchor": "top"}
        text = f" <b>{name}</b> {milliseconds(value_ms)} "
        annotations.append({**place, "yshift": yshift, "text": text, "showarrow": False})
    return {"shapes": shapes, "annotations": annotations}
