"""Charts of a report whose horizontal axis is the log's time."""

from __future__ import annotations

import html
import math

import numpy as np

from oakum_solver.replay.binning import Binned, bin_edges, reduce_steps
from oakum_solver.replay.chart import LEGEND_ABOVE, Chart, Figure, Floats, number, rounded
from oakum_solver.replay.export import share
from oakum_solver.replay.quantities import amount, count, days, percent
from oakum_solver.replay.result import ReplayResult, TrainerOutcome

_TIME_BINS = 600
_SIZE_BINS = 240
_MOST_ROWS = 200
"""Largest number of trainers in the chart of sizes."""
_LONGEST_NAME = 28
_PERIOD_NAMES = {3600.0: "hour", 21600.0: "6 hours", 86400.0: "day", 604800.0: "week"}


def nodes_over_time(result: ReplayResult) -> Chart:
    """Chart of idle and used nodes over time; where time is binned, with each bin's minimum and maximum."""
    steps, scale = result.steps, _time_scale(result)
    edges = bin_edges(steps.time_s, _planned_until_s(result), _TIME_BINS)
    binned = len(edges) - 1 == _TIME_BINS
    idle = reduce_steps(steps.time_s, steps.idle_nodes, edges)
    used = reduce_steps(steps.time_s, steps.used_nodes, edges)
    traces = [
        *(_band(idle, scale) if binned else []),
        _area(used, scale, binned, "used") | {"name": "used", "fill": "tozeroy", "fillcolor": "var(--used-wash)"},
        _area(idle, scale, binned, "idle")
        | {"name": "idle, granted to nobody", "fill": "tonexty", "fillcolor": "var(--unallocated)"},
    ]
    sentence = (
        f"On average {amount(result.equivalent_nodes)} of {count(result.nodes)} nodes were idle and "
        f"{amount(share(result.used_node_hours, result.hours))} of them granted to trainers; "
        f"at most {count(steps.idle_nodes.max())} were idle."
    )
    if binned:
        sentence += (
            f" Means over {days(float(edges[1] - edges[0]))}; the grey band is the range of idle nodes in it."
        )
    layout = {
        "xaxis": _time_axis(result),
        "yaxis": {"title": {"text": "nodes"}, "rangemode": "tozero", "tickformat": ","},
        "hovermode": "x unified",
        "legend": LEGEND_ABOVE,
    }
    return Chart("nodes", "Idle and used nodes", sentence, 340, {"data": traces, "layout": layout})


def _area(series: Binned, scale: float, binned: bool, name: str) -> Figure:
    extremes = " (%{customdata[0]:,d} to %{customdata[1]:,d})" if binned else ""
    area: Figure = {
        "x": rounded(series.edges * scale, 5),
        "y": _held(series.mean, 2),
        "mode": "lines",
        "line": {"shape": "hv", "width": 1 if name == "used" else 0, "color": "var(--used)"},
        "hovertemplate": f"{name} <b>%{{y:,.1~f}}</b>{extremes}<extra></extra>",
    }
    if binned:
        area["customdata"] = [list(pair) for pair in zip(_held(series.low, 0), _held(series.high, 0), strict=True)]
    return area


def _band(series: Binned, scale: float) -> list[Figure]:
    hidden = {
        "x": rounded(series.edges * scale, 5),
        "mode": "lines",
        "line": {"shape": "hv", "width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    high = {"y": _held(series.high, 0), "fill": "tonexty", "fillcolor": "var(--range)"}
    return [{**hidden, "y": _held(series.low, 0)}, {**hidden, **high}]


def used_over_time(result: ReplayResult) -> Chart:
    """Bar chart of the used share of the idle node-time, by periods of about a day."""
    steps, end_s = result.steps, _planned_until_s(result)
    period_s = _period_s(result.hours)
    edges = np.minimum(np.arange(math.ceil(end_s / period_s) + 1) * period_s, end_s)
    idle = reduce_steps(steps.time_s, steps.idle_nodes, edges).mean
    used = reduce_steps(steps.time_s, steps.used_nodes, edges).mean
    shares = np.divide(used, idle, out=np.full(len(idle), np.nan), where=idle > 0)
    scale = _time_scale(result)
    bars = {
        "type": "bar",
        "x": rounded((edges[:-1] + edges[1:]) / 2 * scale, 5),
        "width": rounded(np.diff(edges) * scale * 0.9, 5),
        "y": rounded(shares, 4),
        "customdata": rounded(idle * np.diff(edges) / 3600, 1),
        "marker": {"color": "var(--used)"},
        "hovertemplate": "<b>%{y:.1%}</b> of %{customdata:,.1~f} idle node-hours<extra></extra>",
    }
    overall = share(result.used_node_hours, result.idle_node_hours)
    productive = share(result.productive_node_hours, result.idle_node_hours)
    sentence = (
        f"By {_PERIOD_NAMES[period_s]}. Over the whole log {percent(overall)} were granted to trainers (dashed), "
        f"{percent(productive)} trained."
    )
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": number(overall, 4), "y1": number(overall, 4)}
    layout = {
        "xaxis": _time_axis(result),
        "yaxis": {
            "title": {"text": "share of idle node-time"},
            "range": [0, 1.02],
            "tickformat": ".0%",
            "hoverformat": ".1%",
        },
        "showlegend": False,
        "shapes": [{**line, "line": {"color": "var(--text)", "width": 1.5, "dash": "dash"}}],
    }
    return Chart("used", "Idle node-time granted to trainers", sentence, 260, {"data": [bars], "layout": layout})


def sizes(result: ReplayResult) -> Chart:
    """Heat map of each trainer's mean number of nodes over time, from its submission to its end."""
    shown = _with_most_node_hours(result.trainers, _MOST_ROWS)
    end_s = 3600 * result.hours
    edges = np.linspace(0, end_s, _SIZE_BINS + 1)
    rows = [_sizes_of(trainer, edges, end_s) for trainer in shown]
    heat = {
        "type": "heatmap",
        "x": rounded(edges * _time_scale(result), 4),
        "y": _labels(shown),
        "z": [rounded(row, 1) for row in rows],
        "zmin": 0,
        "ygap": 1 if len(shown) <= 80 else 0,
        "colorscale": [
            *([0.0, "var(--waiting)"], [1e-9, "var(--heat-0)"], [0.35, "var(--heat-1)"]),
            *([0.7, "var(--heat-2)"], [1.0, "var(--heat-3)"]),
        ],
        "colorbar": {"title": {"text": "nodes"}, "thickness": 12, "outlinewidth": 0, "tickformat": "~g"},
        "hoverongaps": False,
        "hovertemplate": "<b>%{y}</b><br>%{z:,.1~f} nodes on average<br>%{x:.2f} "
        + _time_unit(result)
        + "<extra></extra>",
    }
    layout = {
        "xaxis": {**_time_axis(result), "showgrid": False},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
    }
    width_s = end_s / _SIZE_BINS
    sentence = (
        f"Mean size within {days(width_s)}, one row for each trainer; grey while it waited for nodes, "
        "nothing before its submission and after its end."
    )
    if len(shown) < len(result.trainers):
        sentence += f" The {len(shown)} of {len(result.trainers)} trainers with the most node-hours."
    height = min(max(110 + 17 * len(shown), 220), 880)
    return Chart("sizes", "Sizes of the trainers", sentence, height, {"data": [heat], "layout": layout})


def _with_most_node_hours(trainers: tuple[TrainerOutcome, ...], most: int) -> list[TrainerOutcome]:
    """The at most `most` trainers with the most node-hours, in the given order."""
    ranked = sorted(range(len(trainers)), key=lambda row: -trainers[row].node_hours)
    return [trainers[row] for row in sorted(ranked[:most])]


def _sizes_of(trainer: TrainerOutcome, edges: Floats, end_s: float) -> Floats:
    until_s = end_s if trainer.end_s is None else trainer.end_s
    changes = [(trainer.submit_s, 0), *trainer.sizes]
    times, nodes = (np.array(column, dtype=np.float64) for column in zip(*changes, strict=True))
    means = reduce_steps(times, nodes, edges).mean
    return np.where(edges[:-1] >= until_s, np.nan, means)


def _labels(trainers: list[TrainerOutcome]) -> list[str]:
    """Unique labels of the trainers, escaped because Plotly reads labels as HTML; equal ones would share a row."""
    short = [
        name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        for name in (trainer.name for trainer in trainers)
    ]
    if len(set(short)) < len(short):
        short = [f"{name} ({row})" for row, name in enumerate(short, start=1)]
    return [html.escape(name) for name in short]


def _planned_until_s(result: ReplayResult) -> float:
    """Time up to which the steps have data: the log's end, or the end of the last trainer if no step follows."""
    ends_s = [math.inf if trainer.end_s is None else trainer.end_s for trainer in result.trainers]
    last_s = max(ends_s, default=math.inf)
    return 3600 * result.hours if result.steps.time_s[-1] >= last_s else min(last_s, 3600 * result.hours)


def _period_s(hours: float) -> float:
    """Length in seconds of the period of one bar: an hour for logs of up to a day, 6 h up to a week, a day up to
    120 days, else a week."""
    if hours <= 24:
        return 3600.0
    if hours <= 24 * 7:
        return 21600.0
    return 86400.0 if hours <= 24 * 120 else 604800.0


def _in_days(result: ReplayResult) -> bool:
    return result.hours > 72


def _time_scale(result: ReplayResult) -> float:
    return 1 / 86400 if _in_days(result) else 1 / 3600


def _time_unit(result: ReplayResult) -> str:
    return "days" if _in_days(result) else "hours"


def _time_axis(result: ReplayResult) -> Figure:
    return {
        "title": {"text": f"{_time_unit(result)} since the log's start"},
        "range": [0, 3600 * result.hours * _time_scale(result)],
        "hoverformat": ".2f",
        "unifiedhovertitle": {"text": f"{_time_unit(result)[:-1]} %{{x}}"},
    }


def _held(values: Floats, digits: int) -> list[float | None]:
    """The bins' values, rounded, with the last one repeated: a stepped line needs a point that ends the last
    bin."""
    return rounded(np.append(values, values[-1:]), digits)
