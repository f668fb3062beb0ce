"""Every refusal is a problem document (RFC 9457) that says what to change."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from api_under_test import SPEC, ApiUnderTest, full_spec, problem_of
from cells import each
from oakum_service.states import TrainerState

NOT_PLAIN = "the request is not valid: see `errors` for what to change"


def submit_text(api: ApiUnderTest, text: str | bytes, content_type: str = "application/json") -> httpx.Response:
    return api.user.post("/v1/trainers", content=text, headers={"Content-Type": content_type})


def faults(api: ApiUnderTest, spec: dict[str, Any]) -> list[str]:
    """The lines of the answer that refuses a spec."""
    problem = problem_of(submit_text(api, json.dumps(spec)), 422)
    lines: list[str] = problem["errors"]
    assert problem["detail"] in (f"the spec cannot be accepted: {lines[0]}", NOT_PLAIN)
    assert api.viewer.get("/v1/trainers").json() == {"trainers": [], "next": None, "hold": None, "fault": None}
    return lines


@each("path", ["/v1/nothing", "/v2/trainers", "/v1/trainers/a/b/c", "/static/none.js"])
def test_a_path_that_does_not_exist(api: ApiUnderTest, path: str) -> None:
    assert problem_of(api.admin.get(path), 404)["title"] == "Not Found"


def test_a_thing_that_does_not_exist(api: ApiUnderTest) -> None:
    detail = problem_of(api.viewer.get("/v1/trainers/nobody"), 404)["detail"]
    assert detail == "no trainer has the name or id 'nobody': `oakum ps --all` lists them"
    for path in ("series", "evaluations", "logs", "explain"):
        problem_of(api.viewer.get(f"/v1/trainers/nobody/{path}"), 404)
    problem_of(api.user.patch("/v1/trainers/nobody", json={"weight": 2.0}), 404)
    problem_of(api.user.post("/v1/trainers/nobody/cancel"), 404)
    detail = problem_of(api.viewer.get("/v1/plans/7"), 404)["detail"]
    assert detail == "there is no plan 7: `GET /v1/plans` lists the newest"


@each("ref", ["%ff", "a" * 5000, "%F0%9F%9A%A2", "' OR 1=1 --"])
def test_a_strange_reference_is_one_that_does_not_exist(api: ApiUnderTest, ref: str) -> None:
    problem_of(api.viewer.get(f"/v1/trainers/{ref}"), 404)


@each("number", ["x", "1.5", "-1", 2**63, 10**30, "9" * 5000])
def test_a_plan_number_that_cannot_be_one(api: ApiUnderTest, number: object) -> None:
    (line,) = problem_of(api.viewer.get(f"/v1/plans/{number}"), 422)["errors"]
    assert line.startswith("path.plan_id: ")


def test_a_method_that_the_path_does_not_have(api: ApiUnderTest) -> None:
    response = api.admin.delete("/v1/plans/1")
    assert problem_of(response, 405)["title"] == "Method Not Allowed"
    assert response.headers["Allow"] == "GET"


def test_a_conflict(api: ApiUnderTest) -> None:
    api.submit()
    problem = problem_of(api.user.post("/v1/trainers", json=SPEC), 409)
    assert problem["title"] == "Conflict"
    assert problem["detail"] == (
        "a trainer named 'digits' is waiting: choose another name or `oakum cancel digits`"
    )


@each("text", ["{oops", "", "{'name': 1}", b"\xff\xfe", '{"name": "a",}'])
def test_a_body_that_is_not_json(api: ApiUnderTest, text: str | bytes) -> None:
    (line,) = problem_of(submit_text(api, text), 422)["errors"]
    assert line.startswith("body: ")
    assert "JSON" in line or line == "body: Field required"


@each("text", ["[1]", '"digits"', "7", "null", "true"])
def test_a_body_that_is_no_object(api: ApiUnderTest, text: str) -> None:
    (line,) = problem_of(submit_text(api, text), 422)["errors"]
    assert line.startswith("body: ")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-yaml", "application/x-www-form-urlencoded"])
def test_a_body_of_another_content_type_is_told_which_to_send(api: ApiUnderTest, content_type: str) -> None:
    (line,) = problem_of(submit_text(api, json.dumps(SPEC), content_type), 422)["errors"]
    assert line.startswith("body: ")
    assert "application/json" in line


def test_a_body_nested_beyond_reason_is_refused(api: ApiUnderTest) -> None:
    for depth in (200, 300, 900, 5000, 100_000):
        text = json.dumps(SPEC | {"arguments": {"x": "HERE"}}).replace('"HERE"', "[" * depth + "]" * depth)
        response = submit_text(api, text)
        problem_of(response, response.status_code)
        assert response.status_code in (400, 413, 422)


SINGLE_FAULTS = {
    "unknown field": ({"nodes": 3}, "unknown field 'nodes': did you mean `max_nodes`?"),
    "field of the wrong part": ({"every_s": 3}, "unknown field 'every_s': did you mean `checkpoint.every_s`?"),
    "unknown field of a part": (
        {"checkpoint": {"evry_s": 3.0}},
        "unknown field 'checkpoint.evry_s': did you mean `checkpoint.every_s`?",
    ),
    "min above max": (
        {"min_nodes": 5, "max_nodes": 3},
        "spec: min_nodes 5 is above max_nodes 3: lower min_nodes or raise max_nodes",
    ),
    "falling curve": (
        {"curve": [[1, 100.0], [2, 90.0]]},
        "curve: 90 samples/s at 2 nodes is not more than 100 at 1: the curve has to rise; if more nodes do not "
        "help, end the curve at 1 and set max_nodes to 1",
    ),
    "unordered curve": (
        {"curve": [[2, 100.0], [1, 50.0]]},
        "curve: 1 nodes follow 2: list the points in rising order of nodes, each once",
    ),
    "point of no nodes": ({"curve": [[0, 5.0]]}, "curve.0.0: Input should be greater than or equal to 1"),
    "useless point": (
        {"curve": [[1, 0.0]]},
        "curve: the point [1, 0.0] is not usable: give samples per second from 1e-12 to 1e+12",
    ),
    "batch too small": (
        {"global_batch": 8, "max_nodes": 4, "ranks_per_node": 4},
        "spec: global_batch 8 gives 16 ranks less than one sample each: raise it or lower max_nodes",
    ),
    "bad name": (
        {"name": "My Trainer"},
        "name: 'My Trainer' is not a valid name: use 1 to 63 lower-case letters, digits and hyphens, beginning "
        "and ending with a letter or digit",
    ),
    "bad entrypoint": (
        {"entrypoint": "tasks/digits.py"},
        "entrypoint: 'tasks/digits.py' is not of the form package.module:function; a script is named by `script`",
    ),
    "wrong type": (
        {"epochs": "two"},
        "epochs: Input should be a valid integer, unable to parse string as an integer",
    ),
    "fraction": (
        {"global_batch": 1.5},
        "global_batch: Input should be a valid integer, got a number with a fractional part",
    ),
    "zero": ({"min_nodes": 0}, "min_nodes: Input should be greater than or equal to 1"),
    "bad part": ({"checkpoint": {"keep": 0}}, "checkpoint.keep: Input should be greater than or equal to 1"),
}


@each("fault", SINGLE_FAULTS)
def test_a_fault_of_the_spec_is_one_line_that_says_what_to_change(api: ApiUnderTest, fault: str) -> None:
    fields, line = SINGLE_FAULTS[fault]
    assert faults(api, SPEC | fields) == [line]


@pytest.mark.parametrize("field", ["name", "global_batch", "epochs"])
def test_a_field_that_has_to_be_there(api: ApiUnderTest, field: str) -> None:
    spec = {name: value for name, value in SPEC.items() if name != field}
    assert faults(api, spec) == [f"{field}: required and not given"]


def test_a_spec_names_a_function_or_a_file(api: ApiUnderTest) -> None:
    spec = {name: value for name, value in SPEC.items() if name != "entrypoint"}
    (line,) = faults(api, spec)
    assert line.startswith("spec: neither entrypoint nor script is given: name a function (entrypoint: ")


@each("value", [float("nan"), float("inf"), float("-inf")])
@each(
    ("where", "fields"),
    {
        "weight": lambda value: {"weight": value},
        "checkpoint.every_s": lambda value: {"checkpoint": {"every_s": value}},
        "curve": lambda value: {"curve": [[1, value]]},
        "arguments": lambda value: {"arguments": {"optimizer": {"lr": [0.1, value]}}},
        "seed": lambda value: {"seed": value},
    }.items(),
)
def test_what_is_not_a_finite_number_is_no_number(
    api: ApiUnderTest, where: str, fields: Any, value: float
) -> None:
    (line,) = faults(api, SPEC | fields(value))
    assert line.startswith(f"{where}")


@each("field", ["global_batch", "micro_batch", "epochs", "max_nodes", "threads_per_rank"])
def test_a_count_that_no_machine_could_count_to_is_refused(api: ApiUnderTest, field: str) -> None:
    (line,) = faults(api, SPEC | {"global_batch": 2**31 - 1} | {field: 10**400})
    assert line.startswith(f"{field}: ")


@pytest.mark.parametrize(
    "fields",
    [{"arguments": {"x": "\ud800"}}, {"arguments": {"\ud800": 1}}, {"workdir": "/\ud800"}],
)
def test_text_that_is_no_unicode_is_refused(api: ApiUnderTest, fields: dict[str, Any]) -> None:
    (line,) = faults(api, SPEC | fields)
    assert line.startswith(next(iter(fields)))


def test_a_field_name_that_is_no_unicode_is_refused(api: ApiUnderTest) -> None:
    assert len(faults(api, SPEC | {"\ud800": 1})) == 1


def test_several_faults_are_told_at_once(api: ApiUnderTest) -> None:
    spec = {
        "name": "A",
        "entrypoint": "a:b",
        "global_batch": 0,
        "epochs": 1,
        "curve": [[1, 2.0], [2, 1.0]],
        "nodes": 3,
    }
    lines = faults(api, spec)
    assert [line.split(":")[0] for line in lines] == [
        "name",
        "global_batch",
        "curve",
        "unknown field 'nodes'",
    ]


def test_a_batch_smaller_than_the_default_size_lowers_the_size_and_not_the_user(api: ApiUnderTest) -> None:
    """Nobody who asks for a batch of 8 has to know that 64 nodes are the default."""
    document = api.submit(global_batch=8)
    assert document["spec"] == full_spec(global_batch=8, max_nodes=8)
    changed = api.user.patch("/v1/trainers/digits", json={"weight": 2.0})
    assert changed.json()["spec"] == full_spec(global_batch=8, max_nodes=8, weight=2.0)


def test_what_is_shown_of_a_spec_can_be_submitted_again(api: ApiUnderTest) -> None:
    first = api.submit(global_batch=3, ranks_per_node=2, curve=[[1, 5.0]])["spec"]
    assert api.submit(**first | {"name": "again"})["spec"] == first | {"name": "again"}


class TestChanges:
    """PATCH takes sizes and a weight of a trainer that has not ended."""

    @pytest.fixture
    def trainer(self, api: ApiUnderTest) -> str:
        return str(api.submit(min_nodes=2, max_nodes=4)["id"])

    def refused(self, api: ApiUnderTest, change: dict[str, Any], status: int = 422) -> Any:
        before = api.viewer.get("/v1/trainers/digits").json()
        problem = problem_of(api.user.patch("/v1/trainers/digits", json=change), status)
        assert api.viewer.get("/v1/trainers/digits").json() == before
        return problem

    @pytest.mark.parametrize(
        ("change", "line"),
        [
            ({"min_nodes": 5}, "spec: min_nodes 5 is above max_nodes 4: lower min_nodes or raise max_nodes"),
            ({"max_nodes": 1}, "spec: min_nodes 2 is above max_nodes 1: lower min_nodes or raise max_nodes"),
            (
                {"max_nodes": 97},
                "spec: global_batch 96 gives 97 ranks less than one sample each: raise it or lower max_nodes",
            ),
        ],
    )
    def test_sizes_that_do_not_fit(
        self, api: ApiUnderTest, trainer: str, change: dict[str, Any], line: str
    ) -> None:
        assert self.refused(api, change)["errors"] == [line]

    def test_sizes_bring_their_bounds_and_bounds_have_to_be_sizes(self, api: ApiUnderTest, trainer: str) -> None:
        def changed(**change: Any) -> dict[str, Any]:
            response = api.user.patch("/v1/trainers/digits", json=change)
            assert response.status_code == 200, response.text
            spec: dict[str, Any] = response.json()["spec"]
            return {name: spec[name] for name in ("sizes", "min_nodes", "max_nodes")}

        assert changed(sizes=[1, 3, 6]) == {"sizes": [1, 3, 6], "min_nodes": 1, "max_nodes": 6}
        (line,) = self.refused(api, {"max_nodes": 4})["errors"]
        assert line == "spec: max_nodes 4 is not among sizes (1, 3, 6): give one of these, or leave max_nodes out"
        assert changed(max_nodes=3) == {"sizes": [1, 3, 6], "min_nodes": 1, "max_nodes": 3}
        assert changed(sizes="powers_of_two", min_nodes=2) == {
            "sizes": "powers_of_two",
            "min_nodes": 2,
            "max_nodes": 64,
        }
        assert changed(sizes="any", max_nodes=7) == {"sizes": "any", "min_nodes": 2, "max_nodes": 7}

    def test_both_sizes_may_move_past_each_other_in_one_change(self, api: ApiUnderTest, trainer: str) -> None:
        response = api.user.patch("/v1/trainers/digits", json={"min_nodes": 6, "max_nodes": 8})
        assert response.json()["spec"] == full_spec(min_nodes=6, max_nodes=8)

    @pytest.mark.parametrize(
        "change",
        [{"name": "x"}, {"global_batch": 3}, {"min_nodes": 0}, {"weight": 0}, {"weight": "heavy"}, {"seed": 1}],
    )
    def test_fields_and_values_that_cannot_be_changed_so(
        self, api: ApiUnderTest, trainer: str, change: dict[str, Any]
    ) -> None:
        (line,) = self.refused(api, change)["errors"]
        assert line.startswith(f"{next(iter(change))}: ")

    def test_a_size_that_no_machine_could_count_to(self, api: ApiUnderTest, trainer: str) -> None:
        assert self.refused(api, {"max_nodes": 10**400})["errors"]

    @pytest.mark.parametrize("state", [state for state in TrainerState if state.ended])
    def test_a_trainer_that_has_ended(self, api: ApiUnderTest, trainer: str, state: TrainerState) -> None:
        api.end(trainer, state)
        can_go_on = state in (TrainerState.FAILED, TrainerState.CANCELLED)
        detail = f"trainer 'digits' is {state} and cannot be changed any more: " + (
            "`oakum retry digits` lets it go on, and then it can be"
            if can_go_on
            else "`oakum submit SPEC --from digits` begins from its state"
        )
        assert self.refused(api, {"weight": 2.0}, 409)["detail"] == detail
        assert problem_of(api.user.post("/v1/trainers/digits/cancel"), 409)["detail"] == detail


def test_a_full_disk_is_told_in_answers_and_beside_what_is_old(api: ApiUnderTest) -> None:
    engine = api.context.sessions.kw["bind"]
    api.engine_is_changed = True
    api.context.writability.watch(engine, api.context.sessions)
    event.listen(engine, "checkout", lambda connection, *_: connection.execute("PRAGMA max_page_count = 1"))
    large = {**SPEC, "arguments": {"text": "x" * 100_000}}
    answers = (submit_text(api, json.dumps(large | {"name": f"digits-{number}"})) for number in range(100))
    refused = next(answer for answer in answers if not answer.is_success)
    detail = problem_of(refused, 503)["detail"]
    assert "the disk is full" in detail
    assert api.viewer.get("/v1/trainers").json()["fault"] == detail
    assert api.viewer.get("/v1/cluster").json()["fault"] == detail
    assert api.viewer.get("/healthz").json() == {"status": "cannot write", "detail": detail}


@pytest.mark.timeout(120)
def test_a_locked_database_is_a_matter_of_trying_again(api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = api.sessions.kw["bind"]

    def give_up_at_once(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 50")

    engine.dispose()
    api.engine_is_changed = True
    event.listen(engine, "connect", give_up_at_once)
    with closing(sqlite3.connect(engine.url.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        response = api.user.post("/v1/trainers", json=SPEC)
        other.execute("ROLLBACK")
    assert problem_of(response, 503)["detail"] == "the database is busy: try again in a moment"
    assert int(response.headers["Retry-After"]) > 0
    assert api.user.post("/v1/trainers", json=SPEC).status_code == 201
