"""Draws a replay as one HTML page that needs no network, no server and no other file.

Plotly's script comes from the installed package (extra `report`). The page's content security policy allows this
script and the page's own and nothing else, whatever the names in a workload or a log contain.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from importlib.resources import files
from string import Template

from oakum_solver.errors import SolverError
from oakum_solver.replay.chart import Chart
from oakum_solver.replay.charts import charts
from oakum_solver.replay.export import (
    achieved_over_whole,
    finished,
    gaps,
    learning_cost,
    mean_completion_s,
    not_optimal,
    parts_over_whole,
    share,
    solve_ms,
)
from oakum_solver.replay.quantities import (
    UNKNOWN,
    amount,
    count,
    days,
    milliseconds,
    percent,
    ratio,
    small_percent,
)
from oakum_solver.replay.result import ReplayResult, TrainerOutcome

_STATIC = files("oakum_solver.replay").joinpath("static")
_MOST_ROWS = 1000
"""Largest number of trainers in the table."""


def as_html(result: ReplayResult) -> str:
    """The report on a replay, as the text of an HTML page. Raises `SolverError` where Plotly is not installed."""
    library, script = _plotly(), _static("report.js")
    chart_of = {chart.id: chart for chart in charts(result)}
    return Template(_static("report.html")).substitute(
        policy=f"script-src {_hash_of(library)} {_hash_of(script)}",
        title=html.escape(f"{result.log} replayed: {result.policy}, {result.cost}"),
        style=_static("report.css"),
        log=html.escape(result.log),
        settings=_settings(result),
        tiles="\n".join(_tiles(result)),
        notes=_notes(result.notes),
        nodes=_figure(chart_of.get("nodes")),
        used=_figure(chart_of.get("used")),
        losses=_figure(chart_of.get("losses")),
        solve_times=_figure(chart_of.get("solve-times")),
        sizes=_figure(chart_of.get("sizes")),
        trainers=_trainers(result),
        library=library,
        figures=_data({chart.id: chart.figure for chart in chart_of.values()}),
        script=script,
    )


def check_plotly() -> None:
    """Raise `SolverError` where Plotly is not installed."""
    try:
        import plotly  # noqa: F401
    except ModuleNotFoundError as error:
        raise SolverError(
            "a report needs Plotly, which is not installed: run pip install '.[report]' in Oakum's checkout"
        ) from error


def _plotly() -> str:
    check_plotly()
    text = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    # A browser turns every line end into one \n before it computes the hash.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _static(name: str) -> str:
    return _STATIC.joinpath(name).read_text(encoding="utf-8")


def _hash_of(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _data(document: object) -> str:
    """The document as JSON for a script element; escapes `</` and `<!--`, which would end the element."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _settings(result: ReplayResult) -> str:
    facts = [
        ("Policy", result.policy),
        ("Cost of rescaling", result.cost),
        ("Objective", result.objective),
        ("Look-ahead", days(result.look_ahead_s)),
        ("Machine", f"{count(result.nodes)} nodes"),
        ("Log", f"{days(3600 * result.hours)}, {count(result.events)} events"),
        *([("Maintenance cut out", days(3600 * result.cut_hours))] if result.cut_hours else []),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)


def _tiles(result: ReplayResult) -> Iterable[str]:
    steps, times = result.steps, solve_ms(result.steps)
    reached = share(result.efficiency, result.zero_cost_bound)
    yield _tile("Efficiency U", percent(result.efficiency), "of what N_eq dedicated nodes would train", "main")
    yield _tile("Zero-cost bound", percent(result.zero_cost_bound), f"{percent(reached)} of it reached")
    if (learnt := result.learnt) is not None:
        less = percent(learning_cost(result))
        yield _tile("U with learnt curves", percent(learnt.efficiency), f"{less} less than with known ones")
    yield _tile(
        "Idle node-time used",
        percent(share(result.used_node_hours, result.idle_node_hours)),
        f"{percent(share(result.productive_node_hours, result.idle_node_hours))} productive",
    )
    yield _tile(
        "Idle node-hours" if result.whole_idle_hours is None else "Idle slot-hours",
        amount(result.idle_node_hours),
        f"{percent(share(result.equivalent_nodes, result.nodes))} of the machine",
    )
    if result.whole_idle_hours is not None:
        whole = f"{amount(result.whole_idle_hours)} slot-hours of them in nodes idle as a whole"
        yield _tile("Parts over whole nodes", ratio(parts_over_whole(result)), whole)
    if result.whole_achieved is not None:
        alone = "what the same trainers achieve with whole nodes only"
        yield _tile("Trained over whole nodes", ratio(achieved_over_whole(result)), alone)
    yield _tile("Equivalent nodes", amount(result.equivalent_nodes), "N_eq, idle on average")
    yield _tile("Solve time, median", milliseconds(times["p50"]), f"99 % within {milliseconds(times['p99'])}")
    unproven = not_optimal(steps)
    gap = small_percent(gaps(steps)["p50"])
    yield _tile("Not proven optimal", count(unproven), f"of {count(len(steps.optimal))} plans; median gap {gap}")
    done = finished(result)
    if any(trainer.wanted_samples is not None for trainer in result.trainers):
        after = f"after {days(mean_completion_s(result))} on average" if done else "none by the log's end"
        yield _tile("Trainers finished", f"{count(len(done))} of {count(len(result.trainers))}", after)
    else:
        yield _tile("Trainers", count(len(result.trainers)), f"endless; {count(result.rescales)} rescales")


def _tile(name: str, figure: str, note: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f"<div{marked}><dt>{name}</dt><dd><strong>{figure}</strong><span>{_subscripted(note)}</span></dd></div>"


def _subscripted(text: str) -> str:
    return text.replace("N_eq", "N<sub>eq</sub>")


def _notes(notes: tuple[str, ...]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<section class="notes" aria-label="Notes"><ul>{items}</ul></section>'


def _figure(chart: Chart | None) -> str:
    if chart is None:
        return ""
    sentence = html.escape(chart.sentence)
    return (
        f'<figure class="panel" id="figure-{chart.id}">'
        f"<figcaption><h2>{html.escape(chart.title)}</h2><p>{sentence}</p></figcaption>"
        f'<div class="chart" id="{chart.id}" data-height="{chart.height}" role="img" '
        f'aria-label="{html.escape(f"{chart.title}. {chart.sentence}")}"></div></figure>'
    )


_COLUMNS = ("Trainer", "Progress", "Samples", "Waited", "Completed after", "Node-hours", "Rescales")


def _trainers(result: ReplayResult) -> str:
    if not result.trainers:
        return ""
    head = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    rows = "\n".join(_row(trainer) for trainer in result.trainers[:_MOST_ROWS])
    left_out = len(result.trainers) - _MOST_ROWS
    more = f"<p>{count(left_out)} more are left out here; <code>--json</code> has all.</p>" if left_out > 0 else ""
    return (
        '<section class="panel" aria-labelledby="trainers-title"><h2 id="trainers-title">Trainers</h2>'
        '<div class="rows" role="region" aria-labelledby="trainers-title" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}</section>"
    )


def _row(trainer: TrainerOutcome) -> str:
    cells = (
        _progress(trainer),
        count(trainer.samples),
        UNKNOWN if trainer.start_s is None else days(trainer.start_s - trainer.submit_s),
        UNKNOWN if trainer.end_s is None else days(trainer.end_s - trainer.submit_s),
        amount(trainer.node_hours),
        count(trainer.rescales),
    )
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{html.escape(trainer.name)}</th>{row}</tr>'


def _progress(trainer: TrainerOutcome) -> str:
    if trainer.wanted_samples is None:
        return "endless"
    done = min(share(trainer.samples, trainer.wanted_samples), 1.0)
    return f'<progress max="1" value="{done:.4f}" aria-hidden="true"></progress> {percent(done)}'
