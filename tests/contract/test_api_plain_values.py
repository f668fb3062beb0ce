"""What no database, plan or reader can take is refused in every field of every route, and what a field alone
cannot take by that field: nothing that is sent is an error of the service's own, and nothing that was kept breaks
a route."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from api_under_test import SPEC, ApiUnderTest, path_with, problem_of, report
from cells import each
from oakum_service.api.body_limit import STATE_PATH
from oakum_service.control.observe import write_snapshot
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmState
from oakum_service.schedulers.slurm.snapshot import OakumInstance, to_snapshot
from openapi_document import openapi_document
from postgres_database import on_both_databases

NO_TEXTS = ['"\\ud800"', '"a\\u0000b"']
NO_NUMBERS = ["1e309", "-1e309", "1e-300", "-1e-300", "NaN", "Infinity", "1" + "0" * 30]
"""JSON that no field takes."""
LIMITS = ["9223372036854775807", "-9223372036854775808", "2147483648", "1e-150", "1e150", '"' + "x" * 5000 + '"']
"""JSON that each field takes or refuses."""
TEXTS = ["1e309", "-1e309", "nan", "inf", "1e-300", str(2**63), str(-(2**63) - 1), "9" * 5000, "\ud800"]
"""Values in addresses."""
HOLE = "<here>"
OF_AGENTS = "/v1/fragments/"
STREAM = "/v1/events"
PICTURE = "from_at=0&to_at=60&node=n1&columns=2&bands=2&find=x"
"""What the node history's routes have to be asked for."""
DOCUMENT = openapi_document()
Operation = tuple[str, str, dict[str, Any]]


def operations() -> Iterator[Operation]:
    """Method, path and description of all that users, hooks and administrators may ask for."""
    for path, methods in DOCUMENT["paths"].items():
        for method, described in methods.items():
            if not path.startswith(OF_AGENTS):
                yield method, path, described


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, or that which it refers to; of alternatives the first, and for an object that may be
    a spec, that of specs."""
    if "$ref" in schema:
        return resolved(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return resolved(schema["anyOf"][0])
    if schema.get("additionalProperties") is True and schema.get("title") != "Arguments":
        return resolved({"$ref": "#/TrainerSpec"})
    return schema


def sample(schema: dict[str, Any]) -> Any:
    """A value of the schema."""
    schema = resolved(schema)
    if schema.get("title") == "TrainerSpec":
        return SPEC
    if schema.get("type") == "object":
        return {name: sample(schema["properties"][name]) for name in schema.get("required", [])}
    kinds: dict[str, Any] = {"array": [], "integer": 1, "number": 1.0, "boolean": True, "string": "x"}
    return schema["enum"][0] if "enum" in schema else kinds[schema["type"]]


def with_hole(schema: dict[str, Any]) -> Iterator[Any]:
    """Values of the schema with a hole: one for each field, at any depth, and one for a field's name."""
    schema = resolved(schema)
    items = [*schema.get("prefixItems", []), schema["items"]] if "items" in schema else schema.get("prefixItems")
    if schema.get("type") == "object":
        yield sample(schema) | {HOLE: 1} if "properties" in schema else {"x": HOLE}
        for name, part in schema.get("properties", {}).items():
            yield from (sample(schema) | {name: value} for value in with_hole(part))
    elif items:
        yield from ([value] for item in items for value in with_hole(item))
    else:
        yield HOLE


def bodies(path: str, described: dict[str, Any]) -> list[str]:
    """JSON of the operation's bodies with a hole. A spec's fields are gone through where it is submitted."""
    content = described.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return []
    found = [json.dumps(value) for value in with_hole(content["schema"])]
    return (
        found
        if path == "/v1/trainers"
        else [body for body in found if body.count("tasks.digits") == 0] or found[:2]
    )


def filled(path: str, value: str | None = None, name: str = "") -> str:
    """The path with a value for each of its parameters: `value` for that of this name."""
    return path_with(path, {} if value is None else {name: quote(value, safe="", errors="surrogatepass")})


def addresses(path: str, described: dict[str, Any], value: str) -> Iterator[str]:
    """The operation's addresses with the value for one of its parameters."""
    for parameter in described.get("parameters", []):
        if parameter["in"] == "path":
            yield filled(path, value, parameter["name"])
        elif parameter["in"] == "query":
            yield f"{filled(path)}?{parameter['name']}={quote(value, safe='', errors='surrogatepass')}"


def send(api: ApiUnderTest, method: str, address: str, body: str | None = None) -> Any:
    headers = {"Content-Type": "application/json"}
    return api.admin.request(method, address, content=body, headers=headers if body is not None else {})


def all_can_be_read(api: ApiUnderTest) -> None:
    """Whether each reading route still answers."""
    for method, path, _ in operations():
        if method == "get" and path != STREAM:
            answer = send(api, method, f"{filled(path)}?{PICTURE}")
            assert answer.status_code in (200, 404) or path == "/readyz", (path, answer.text[:300])


@on_both_databases
def test_no_field_of_any_body_takes_what_is_no_text_and_no_number(api: ApiUnderTest, database: str | None) -> None:
    api.submit()
    faults = []
    for method, path, described in operations():
        for number, body in enumerate(bodies(path, described) if path != STATE_PATH else []):
            as_name = f'"{HOLE}": 1' in body
            for odd in NO_TEXTS if as_name else [*NO_TEXTS, NO_NUMBERS[number % len(NO_NUMBERS)]]:
                sent = body.replace(f'"{HOLE}"', odd)
                answer = send(api, method, filled(path), sent)
                if answer.status_code != HTTPStatus.UNPROCESSABLE_ENTITY or not answer.json()["errors"]:
                    faults.append(f"{method} {path} {sent[:200]}: {answer.status_code} {answer.text[:200]}")
    assert not faults, "\n".join(faults)
    all_can_be_read(api)


@on_both_databases
def test_each_field_takes_or_refuses_the_largest_values(api: ApiUnderTest, database: str | None) -> None:
    api.submit()
    faults = []
    for method, path, described in operations():
        for body in bodies(path, described):
            for value in LIMITS if f'"{HOLE}": 1' not in body else LIMITS[-1:]:
                answer = send(api, method, filled(path), sent := body.replace(f'"{HOLE}"', value))
                if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    faults.append(f"{method} {path} {sent[:200]}: {answer.status_code} {answer.text[:200]}")
    assert not faults, "\n".join(faults)
    all_can_be_read(api)


@on_both_databases
def test_no_address_is_an_error_of_the_service(api: ApiUnderTest, database: str | None) -> None:
    api.submit()
    faults = []
    for method, path, described in operations():
        for value in ["a\0b", *TEXTS]:
            for address in addresses(path, described, value) if path != STREAM or value == "a\0b" else []:
                answer = send(api, method, address)
                refused = HTTPStatus.UNPROCESSABLE_ENTITY if "\0" in value else answer.status_code
                if answer.status_code != refused or answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    faults.append(f"{method} {address[:200]}: {answer.status_code} {answer.text[:200]}")
    assert not faults, "\n".join(faults)
    all_can_be_read(api)


@on_both_databases
def test_whatever_a_job_is_called_its_node_is_recorded(api: ApiUnderTest, database: str | None) -> None:
    """Any account of the cluster may submit a job, and Slurm takes all of these names."""
    names = ["", "x" * 1024, "\U0001f433" * 256, "a\nb\x01\x1b[31m", "a\0b", "%s {0}"]
    jobs = tuple(
        SlurmJob(number, name, "mallory", "main", ("RUNNING",), nodes=f"n{number}")
        for number, name in enumerate(names, 1)
    )
    nodes = tuple(SlurmNode(job.nodes, job.nodes, ("ALLOCATED",), ("main",)) for job in jobs)
    now = time.time()
    waiting = (
        SlurmJob(100, name, "mallory", "main", ("PENDING",), planned_nodes="n1", start_at=now + 60.0)
        for name in names
    )
    state = SlurmState(now, "22.05.8", nodes, (*jobs, *waiting))
    snapshot = to_snapshot(state, OakumInstance("oakum", "ab12"), HolePolicy("main"), {})
    with api.sessions.begin() as session:
        write_snapshot(session, snapshot, None)
    told = api.viewer.get("/v1/nodes").json()["nodes"]
    assert {one["name"]: one["foreground_job"] for one in told} == {job.nodes: str(job.id) for job in jobs}
    all_can_be_read(api)


@each(
    ("body", "told"),
    [
        ('{"reason": "\\udfff"}', "reason: no Unicode text: U+DFFF at character 0 is half of a pair"),
        ('{"reason": "a\\u0000"}', "reason: contains the character NUL (U+0000)"),
        ('{"reason": NaN}', "reason: no finite number: expected 0, or a number from 1e-150 to 1e+150"),
        ('{"a": [{"\\ud800": 1}]}', "a.0.\\ud800: the field's name: no Unicode text: U+D800"),
        ('{"a": 18446744073709551616}', "a: an integer of 65 bits: expected one from -2^63 to 2^63 - 1"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "a: is nested more than 100 levels deep"),
    ],
)
def test_an_odd_value_is_named_with_its_place(api: ApiUnderTest, body: str, told: str) -> None:
    answer = api.admin.put("/v1/hold", content=body, headers={"Content-Type": "application/json"})
    (line,) = problem_of(answer, 422)["errors"]
    assert line.startswith(told)


@each("body", ["9" * 5000, "[" * 20_000, b'{"a": "\xff"}'])
def test_what_json_readers_give_up_on_is_refused_with_the_reason(api: ApiUnderTest, body: str | bytes) -> None:
    answer = api.admin.put("/v1/hold", content=body, headers={"Content-Type": "application/json"})
    assert problem_of(answer, 400)["detail"].startswith("the body cannot be read as JSON: ")


def test_the_text_of_a_spec_says_no_more_than_json_may(api: ApiUnderTest) -> None:
    answer = api.user.post("/v1/trainers/read", json={"text": 'arguments: {"x": "\\0"}'})
    assert "arguments.x: contains the character NUL" in problem_of(answer, 400)["detail"]


def test_an_agent_that_is_refused_is_told_so_whatever_it_has_sent(api: ApiUnderTest) -> None:
    fragment = api.add_fragment(api.submit()["id"])
    body = json.dumps(report() | {"progress": {"metrics": {"\ud800": "x"}}})
    answer = api.fragment_client(fragment).post(
        f"/v1/fragments/{fragment}/report", content=body, headers={"Content-Type": "application/json"}
    )
    problem_of(answer, 422)
