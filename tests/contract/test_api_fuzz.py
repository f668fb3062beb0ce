"""Whatever is sent to the API, it answers with a document or says what to change; and the controller can work
with whatever the API has accepted."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_under_test import SPEC, ApiUnderTest, problem_of, report
from num_examples import scaled
from oakum_service.control.observe import Observation
from oakum_service.control.plan import pose, write_plan
from oakum_service.db.models.trainers import Trainer
from oakum_service.states import TrainerState
from oakum_solver.solve import solve
from oakum_worker.protocol import Phase

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
NUMBERS = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([0, 2**31 - 1, 2**31, 2**63, 10**40, -(10**40)]),
    st.floats(),
    st.sampled_from([5e-324, 1e-300, 1e6, 1e12, 1e300]),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXT, parts, max_size=3),
    max_leaves=6,
)
CURVES = st.lists(st.tuples(NUMBERS, NUMBERS).map(list), max_size=3)
RISING = st.lists(
    st.tuples(st.integers(1, 40), st.floats(1e-12, 1e12)),
    min_size=1,
    max_size=4,
    unique_by=(lambda p: p[0], lambda p: p[1]),
).map(lambda points: [list(point) for point in zip(*map(sorted, zip(*points, strict=True)), strict=True)])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": TEXT,
    "entrypoint": st.sampled_from(["a:b", "a.b:c", "a", "a:b:c", "ä:é", "\ud800:x"]),
    "arguments": st.dictionaries(TEXT, ANYTHING, max_size=2),
    "workdir": TEXT | st.none(),
    "seed": NUMBERS,
    "global_batch": NUMBERS,
    "micro_batch": NUMBERS | st.none(),
    "epochs": NUMBERS,
    "min_nodes": NUMBERS,
    "max_nodes": NUMBERS,
    "curve": RISING | CURVES,
    "curves_by_type": st.dictionaries(st.sampled_from(["cpu", "gpu"]) | TEXT, RISING | CURVES, max_size=2),
    "mixes_types": st.booleans() | NUMBERS,
    "weight": NUMBERS,
    "priority": st.integers(-100, 0) | NUMBERS,
    "deadline": st.datetimes(timezones=st.timezones()).map(datetime.isoformat) | TEXT | NUMBERS | st.none(),
    "ranks_per_node": NUMBERS,
    "threads_per_rank": NUMBERS,
    "checkpoint": st.fixed_dictionaries({}, optional={"every_s": NUMBERS, "keep": NUMBERS, "x": NUMBERS}),
}


def some_of(fields: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Documents with a few of the fields."""
    return st.lists(st.sampled_from(sorted(fields)), max_size=most, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )


SPECS = some_of({name: field | ANYTHING for name, field in FIELDS.items()}, most=3)
"""A few fields to put into a spec that is good without them."""
GOOD_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "global_batch": st.integers(64, 2**31 - 1),
        "min_nodes": st.integers(1, 3),
        "max_nodes": st.integers(3, 64) | st.none().map(lambda _: 64),
        "curve": RISING,
        "weight": st.floats(1e-150, 1e6),
        "priority": st.integers(-100, 0),
        "deadline": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    },
)
"""Good specs, with numbers as extreme as they may be."""

EXAMPLES = settings(
    max_examples=scaled(50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def shared(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiUnderTest]:
    """One API for all examples; each example leaves no live trainer behind."""
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copy(empty_database, folder / "oakum.db")
    api = ApiUnderTest(folder)
    yield api
    api.close()


def end_all(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        for trainer in session.query(Trainer).where(Trainer.ended_at.is_(None)):
            trainer.state, trainer.ended_at = TrainerState.CANCELLED, time.time()


def can_be_planned(api: ApiUnderTest) -> bool:
    """Whether the controller makes a plan of the trainers that are there, and shows it."""
    observed = Observation(1, api.scheduler.snapshot())
    with api.sessions.begin() as session:
        problem = pose(session, observed, api.settings, time.time())
        write_plan(session, solve(problem), problem, observed, time.time())
    return api.viewer.get("/v1/plans/current").status_code == 200


def asks_to_go_first(body: bytes) -> bool:
    """Whether the spec has a priority above 0, which only admins may give."""
    return int(json.loads(body)["priority"]) > 0


def check_submission(api: ApiUnderTest, body: bytes) -> None:
    response = api.user.post("/v1/trainers", content=body, headers={"Content-Type": "application/json"})
    if response.status_code == 201:
        assert api.viewer.get(f"/v1/trainers/{response.json()['id']}").json() == response.json()
        assert can_be_planned(api)
        end_all(api)
        return
    assert response.status_code in (400, 422) or (response.status_code == 403 and asks_to_go_first(body))
    problem_of(response, response.status_code)
    assert api.viewer.get("/v1/trainers", params={"state": "waiting"}).json() == {
        "trainers": [],
        "next": None,
        "hold": None,
        "fault": None,
    }


@given(fields=SPECS)
@EXAMPLES
def test_any_spec_is_accepted_and_planned_or_refused_with_reasons(
    shared: ApiUnderTest, fields: dict[str, Any]
) -> None:
    check_submission(shared, json.dumps(SPEC | fields).encode())


@given(specs=st.lists(GOOD_SPECS, min_size=1, max_size=3))
@settings(EXAMPLES, max_examples=scaled(25))
def test_any_good_specs_are_accepted_and_planned_together(
    shared: ApiUnderTest, specs: list[dict[str, Any]]
) -> None:
    for number, fields in enumerate(specs):
        shared.submit(**fields | {"name": f"t{number}"})
    assert can_be_planned(shared)
    end_all(shared)


@given(document=ANYTHING)
@settings(EXAMPLES, max_examples=scaled(15))
def test_any_json_is_refused_with_reasons(shared: ApiUnderTest, document: Any) -> None:
    check_submission(shared, json.dumps(document).encode())


@given(body=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
@settings(EXAMPLES, max_examples=scaled(15))
def test_any_bytes_are_refused_with_reasons(shared: ApiUnderTest, body: bytes) -> None:
    check_submission(shared, body)


@given(change=st.fixed_dictionaries({}, optional=dict.fromkeys(("min_nodes", "max_nodes", "weight"), NUMBERS)))
@settings(EXAMPLES, max_examples=scaled(25))
def test_any_change_is_made_and_planned_or_refused_with_reasons(
    shared: ApiUnderTest, change: dict[str, Any]
) -> None:
    before = shared.submit(global_batch=2**20)
    response = shared.user.patch(
        "/v1/trainers/digits", content=json.dumps(change), headers={"Content-Type": "application/json"}
    )
    if response.status_code == 200:
        assert response.json()["spec"] == before["spec"] | change
        assert can_be_planned(shared)
    else:
        assert problem_of(response, 422)["errors"]
        assert shared.viewer.get(f"/v1/trainers/{before['id']}").json()["spec"] == before["spec"]
    end_all(shared)


COUNTS = st.integers(0, 2) | st.integers(0, 2) | st.integers(0, 2) | NUMBERS
REPORTS = some_of(
    {
        "phase": st.sampled_from(list(Phase)),
        "ranks": st.lists(st.fixed_dictionaries({"host": TEXT, "port": NUMBERS}), max_size=2),
        "generation": COUNTS,
        "broken": COUNTS,
        "startup_s": NUMBERS,
        "progress": st.fixed_dictionaries(
            dict.fromkeys(("generation", "nodes", "step", "total_steps", "epoch", "samples"), COUNTS),
            optional={
                "loss": NUMBERS,
                "total_samples": NUMBERS,
                "global_batch": COUNTS,
                "learning_rate": NUMBERS,
                "samples_per_s": NUMBERS,
                "checkpoint_step": COUNTS,
                "metrics": st.dictionaries(TEXT, NUMBERS, max_size=2),
            },
        ),
        "switches": st.lists(
            st.fixed_dictionaries(
                {
                    "generation": COUNTS,
                    "step": COUNTS,
                    "source": st.sampled_from(["survivor", "checkpoint", "elsewhere"]) | TEXT,
                },
                optional={"stall_s": NUMBERS, "step_s": NUMBERS},
            ),
            max_size=2,
        ),
        "failure": st.fixed_dictionaries(
            {"stage": st.sampled_from(["load", "train"]) | TEXT, "message": TEXT},
            optional={"step": COUNTS, "traceback": TEXT},
        ),
        "signalled": st.booleans(),
        "warnings": st.lists(TEXT, max_size=2),
    },
    most=3,
)


@given(reports=st.lists(REPORTS, min_size=1, max_size=3))
@settings(EXAMPLES, max_examples=scaled(15))
def test_no_agent_can_stop_the_controller_with_what_it_reports(
    shared: ApiUnderTest, reports: list[dict[str, Any]]
) -> None:
    """A user's code can reach the agent on its node, so one trainer's invalid reports must not harm other
    trainers."""
    end_all(shared)
    trainer = shared.submit()["id"]
    fragment = shared.add_fragment(trainer)
    agent, keeper = shared.fragment_client(fragment), shared.keeper()
    for sequence, fields in enumerate([{"phase": Phase.READY}, *reports]):
        body = json.dumps(report(sequence) | fields)
        headers = {"Content-Type": "application/json"}
        answer = agent.post(f"/v1/fragments/{fragment}/report", content=body, headers=headers)
        assert answer.status_code in (204, 422), answer.text
        with shared.sessions.begin() as session:
            keeper.read_reports(session, time.time())
            keeper.turn(session, [], time.time())
        assert agent.get(f"/v1/fragments/{fragment}/directive").status_code == 200
        assert shared.viewer.get(f"/v1/trainers/{trainer}").status_code == 200
        assert shared.viewer.get(f"/v1/trainers/{trainer}/series").status_code == 200
    assert can_be_planned(shared)
    end_all(shared)
