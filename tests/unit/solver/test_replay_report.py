"""A replay's result as a page, as JSON and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cells import each
from fabricated_replay import large_result, small_result
from num_examples import scaled
from oakum_solver.errors import SolverError
from oakum_solver.replay.binning import bin_edges, reduce_steps
from oakum_solver.replay.charts import charts
from oakum_solver.replay.export import as_document, gap, steps_csv
from oakum_solver.replay.report import as_html
from oakum_solver.replay.result import LearntCurves, Losses, ReplayResult, ReplaySteps, TrainerOutcome
from oakum_solver.replay.time_charts import nodes_over_time, sizes

CODE = "</script><img src=x onerror=alert(1)> & <b>bold</b>"
NO_STEPS = ReplaySteps(
    *(np.empty(0, dtype=kind) for kind in (float, int, int, int, float, float, float, bool, float)), solver=()
)
CHARTS = ["nodes", "used", "losses", "solve-times", "sizes"]


class Page(HTMLParser):
    """What a browser would see: texts, elements and attributes, scripts apart."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.figures: dict[str, Any] = {}
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        if self._inside == "figures":
            self.figures = json.loads(data)
            self._inside = ""
        elif self._inside not in ("script", "style") and data.strip():
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ")


step_functions = st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 5000)), min_size=1, max_size=60).map(
    lambda steps: tuple(np.array(column) for column in zip(*steps, strict=True))
)


@settings(max_examples=scaled(200), deadline=None)
@given(step_functions, st.integers(1, 20))
def test_bins_keep_the_area_and_the_extremes(steps: Any, num_bins: int) -> None:
    lasts, values = steps
    times = np.concatenate([[0.0], np.cumsum(lasts)[:-1]])
    end = float(lasts.sum())
    binned = reduce_steps(times, values, np.linspace(0, end, num_bins + 1))
    assert binned.mean @ np.diff(binned.edges) == pytest.approx(values @ lasts, rel=1e-9, abs=1e-6)
    assert (binned.low.min(), binned.high.max()) == (values.min(), values.max())
    assert np.all((binned.low <= binned.mean) & (binned.mean <= binned.high))


def test_a_bin_before_the_first_step_is_empty_and_one_with_it_counts_what_follows() -> None:
    binned = reduce_steps(np.array([3.0]), np.array([4]), np.array([0.0, 2.0, 4.0, 6.0]))
    assert np.array_equal(binned.mean, [np.nan, 4.0, 4.0], equal_nan=True)


def test_of_several_values_at_one_time_the_last_one_counts() -> None:
    binned = reduce_steps(np.array([0.0, 1.0, 1.0]), np.array([2, 900, 4]), np.array([0.0, 2.0]))
    assert (binned.mean.tolist(), binned.low.tolist(), binned.high.tolist()) == ([3.0], [2.0], [4.0])


def test_few_steps_are_their_own_bins() -> None:
    assert bin_edges(np.array([0.0, 1.0, 7.0]), 9.0, most=3).tolist() == [0.0, 1.0, 7.0, 9.0]
    assert bin_edges(np.array([0.0, 1.0, 7.0]), 9.0, most=2).tolist() == [0.0, 4.5, 9.0]


def test_the_document_holds_every_figure() -> None:
    document = as_document(small_result())
    trainers = document.pop("trainers")
    assert document == {
        "log": "week.csv", "policy": "milp", "cost": "paper", "objective": "speedup", "look_ahead_s": 1800.0,
        "events": 3, "hours": 2.0, "cut_hours": 0.0, "nodes": 40, "idle_node_hours": 20.0, "used_node_hours": 18.0,
        "productive_node_hours": 15.0, "equivalent_nodes": 10.0, "samples": 9e6, "achieved": 80.0,
        "achievable": 100.0, "efficiency": 0.8, "zero_cost_bound": 0.9, "used": 0.9, "productive": 0.75,
        "loss": {"startup": 0.025, "grow": 0.05, "shrink": 0.0125, "preemption": 0.0625, "unallocated": 0.1},
        "rescales": 7, "trainers_finished": 1, "mean_completion_s": 3600.0,
        "solve_ms": {"p50": pytest.approx(20.0), "p99": pytest.approx(29.8), "max": pytest.approx(30.0)},
        "gap": {"p50": pytest.approx(0.05), "p99": pytest.approx(0.099), "max": pytest.approx(0.1)},
        "not_optimal": 1, "wall_s": 1.5, "notes": ["12 jobs larger than the machine skipped"],
    }  # fmt: skip
    assert trainers[1] == {
        "name": "endless", "submit_s": 0.0, "start_s": 60.0, "end_s": None, "samples": 5e6, "wanted_samples": None,
        "node_hours": 12.0, "rescales": 4,
    }  # fmt: skip


def test_the_document_says_what_learning_has_cost() -> None:
    learnt = LearntCurves(efficiency=0.76, settled_after_h=math.inf, as_known=0.9, explored=0.01)
    document = as_document(small_result(learnt=learnt))
    assert document["learnt"] == {
        "efficiency": 0.76, "cost": pytest.approx(0.05), "settled_after_h": None, "as_known": 0.9, "explored": 0.01
    }  # fmt: skip


def test_what_cannot_be_told_is_null() -> None:
    never = TrainerOutcome("late", 9000.0, None, None, 0.0, 1e6, 0.0, 0, ())
    empty = small_result(
        steps=NO_STEPS, trainers=(never,), idle_node_hours=0.0, efficiency=math.nan, zero_cost_bound=math.inf
    )
    document = as_document(empty)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["solve_ms"] == {"p50": None, "p99": None, "max": None}
    assert set(document["loss"].values()) == {None}
    told = ("efficiency", "zero_cost_bound", "used", "mean_completion_s", "trainers_finished")
    assert [document[key] for key in told] == [None, None, None, None, 0]


def test_the_steps_are_a_table_with_units_and_gaps() -> None:
    steps = dataclasses.replace(small_result().steps, bound=np.array([math.nan, 15000.0]))
    assert "".join(steps_csv(steps)) == (
        "time_s,idle_nodes,used_nodes,running_trainers,rate,value,bound,gap,optimal,solver,solve_ms\n"
        "0,12,10,2,9.5,17100,,,1,greedy,10\n"
        "3600,8,8,1,7.5,13500,15000,0.1,0,cbc,30\n"
    )


def test_a_plan_at_or_above_its_bound_has_no_gap() -> None:
    steps = dataclasses.replace(
        small_result().steps, bound=np.array([17099.0, 0.0]), value=np.array([17100.0, 0.0])
    )
    assert gap(steps).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_without_a_bound_there_is_no_gap_to_tell(unknown: float) -> None:
    steps = dataclasses.replace(small_result().steps, bound=np.full(2, unknown))
    assert np.isnan(gap(steps)).all()
    assert set(as_document(small_result(steps=steps))["gap"].values()) == {None}


def test_many_steps_are_written_in_parts() -> None:
    result = large_result(num_steps=25_000, num_trainers=1)
    parts = list(steps_csv(result.steps))
    rows = list(csv.DictReader("".join(parts).splitlines()))
    assert len(parts) == 4
    assert [int(row["idle_nodes"]) for row in rows] == result.steps.idle_nodes.tolist()


def test_the_page_tells_figures_notes_and_trainers() -> None:
    page = Page(as_html(small_result()))
    for told in (
        "week.csv", "Policy milp", "Cost of rescaling paper", "Efficiency U 80.0 %", "Zero-cost bound 90.0 %",
        "88.9 % of it reached", "Idle node-time used 90.0 % 75.0 % productive", "Equivalent nodes 10.0",
        "Solve time, median 20 ms 99 % within 29.8 ms", "Not proven optimal 1 of 2 plans; median gap 5 %",
        "Trainers finished 1 of 2 after 60 min on average", "12 jobs larger than the machine skipped",
        "first 100.0 % 4,000,000 60 s 60 min 6.0 3", "endless endless 5,000,000 60 s – 12.0 4", "How to read this",
    ):  # fmt: skip
        assert told in page.text


def test_every_chart_is_named_and_told_in_words() -> None:
    page = Page(as_html(small_result()))
    drawn = {a["id"]: a["aria-label"] for _, a in page.elements if a.get("class") == "chart"}
    assert list(drawn) == CHARTS
    assert sorted(page.figures) == sorted(CHARTS)
    assert "granted to nobody 10.0 %" in str(drawn["losses"]).replace("\N{NO-BREAK SPACE}", " ")
    assert ("html", {"lang": "en"}) in page.elements


def test_every_axis_with_numbers_says_its_unit() -> None:
    for chart in charts(small_result()):
        layout = chart.figure["layout"]
        untitled = {name for name in ("xaxis", "yaxis") if "title" not in layout[name]}
        # The names of causes and of trainers need none.
        assert untitled <= ({"yaxis"} if chart.id in ("losses", "sizes") else set()), chart.id


def test_text_from_files_is_never_code() -> None:
    trainer = dataclasses.replace(small_result().trainers[0], name=CODE)
    steps = dataclasses.replace(small_result().steps, solver=(CODE, "cbc"))
    page = as_html(small_result(log=CODE, objective=CODE, notes=(CODE,), trainers=(trainer,), steps=steps))
    read = Page(page)
    assert not [tag for tag, _ in read.elements if tag in ("img", "b")]
    assert read.text.count(CODE) == 5  # title, heading, objective, note, row of the table
    assert re.search(r"script-src( 'sha256-[\w+/=]+'){2};", page)
    assert "&lt;" in read.figures["sizes"]["data"][0]["y"][0]


def test_the_page_names_no_other_host() -> None:
    own = as_html(small_result())
    library = re.search(r"<script>/\*\*.*?</script>", own, re.DOTALL)
    assert library is not None
    assert re.findall(r"https?://[\w./-]+", own.replace(library[0], "")) == []
    assert "default-src 'none'" in own


def test_when_all_have_finished_the_last_plan_does_not_go_on() -> None:
    finished = small_result().trainers[0]
    early = dataclasses.replace(finished, end_s=5400.0)
    area = nodes_over_time(small_result(trainers=(early,))).figure["data"][0]
    assert (area["x"], area["y"]) == ([0.0, 1.0, 1.5], [10.0, 8.0, 8.0])


def test_two_trainers_of_one_name_keep_a_row_each() -> None:
    one = small_result().trainers[0]
    long = [dataclasses.replace(one, name="x" * 40 + end) for end in "ab"]
    rows = sizes(small_result(trainers=tuple(long))).figure["data"][0]["y"]
    assert rows == ["x" * 27 + "… (1)", "x" * 27 + "… (2)"]


def test_a_trainer_is_shown_from_its_submission_to_its_end() -> None:
    trainer = TrainerOutcome("one", 1800.0, 3600.0, 5400.0, 1.0, 1.0, 2.0, 1, ((3600.0, 4), (5400.0, 0)))
    row = sizes(small_result(trainers=(trainer,))).figure["data"][0]["z"][0]
    assert row == [None] * 60 + [0.0] * 60 + [4.0] * 60 + [None] * 60


def test_most_points_of_a_chart_do_not_depend_on_the_log() -> None:
    result = large_result(num_steps=200_000, num_trainers=250, days=365)
    traces = nodes_over_time(result).figure["data"]
    assert sum(len(trace["y"]) for trace in traces) <= 4000
    high = next(trace["y"] for trace in traces if trace.get("fillcolor") == "var(--range)")
    assert max(high) == result.steps.idle_nodes.max()
    heat = sizes(result).figure["data"][0]
    assert (len(heat["y"]), len(heat["z"]), len(heat["z"][0])) == (200, 200, 240)
    assert len(as_html(result)) < 12e6


@each(
    "changes",
    [
        {"steps": NO_STEPS},
        {"trainers": ()},
        {"notes": (), "losses": Losses()},
        {"efficiency": math.nan, "zero_cost_bound": math.nan, "idle_node_hours": 0.0, "used_node_hours": 0.0},
        {"hours": 0.0, "steps": NO_STEPS},
    ],
)
def test_a_poor_result_still_makes_a_page(changes: dict[str, Any]) -> None:
    page = Page(as_html(small_result(**changes)))
    assert set(page.figures) <= set(CHARTS)
    assert "nan" not in page.text.lower()
    assert "inf" not in page.text.lower().split()


def test_without_plotly_the_report_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(SolverError, match=r"pip install '\.\[report\]'"):
        as_html(small_result())


def test_the_result_of_a_replay_is_shown_whatever_its_length() -> None:
    for days in (0.1, 2.0, 5.0, 60.0):
        result: ReplayResult = large_result(num_steps=900, num_trainers=3, days=days)
        assert [chart.id for chart in charts(result)] == ["nodes", "used", "losses", "solve-times", "sizes"]
