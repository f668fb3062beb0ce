"""Whatever a request brings or asks for, it takes the service little processor time: other requests and the
controller's turns wait for it.

Bodies are as large as they may be, and ask for the most work that we know of. What a request takes is measured in
CPU seconds of this process; a slow machine takes a few times what a fast one does.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, FakeScheduler, problem_of
from cells import each
from oakum_service.api.body_limit import LARGEST_BODY_BYTES, MOST_VALUES, num_values
from oakum_service.control.observe import write_snapshot

MOST_S = 0.6
HEADERS = {"Content-Type": "application/json"}
TOO_MANY = "the body has more than 25,000 values: pass the name of a file instead of its content"
WRITES = {
    "/v1/trainers": "user",
    "/v1/trainers/check": "user",
    "/v1/trainers/read": "user",
    "/v1/trainers/dry-run": "user",
    "/v1/plans/preview": "viewer",
    "/v1/notices/test": "user",
    "/v1/tokens": "admin",
    "/v1/session": "anonymous",
    "/v1/hooks/slurm": "hook",
    "/v1/cluster/foreground-jobs": "admin",
}


def filled(unit: str, begin: str, end: str, most: int = MOST_VALUES) -> bytes:
    """A body that repeats the unit, with its place for `{}`, until it is as large as it may be."""
    values = max(1, num_values(unit.encode()))
    times = min(most // values - 20, (LARGEST_BODY_BYTES - 1000) // (len(unit) + 6))
    return f"{begin}{','.join(unit.replace('{}', str(number)) for number in range(times))}{end}".encode()


def spec_with(field: str, unit: str, brackets: str = "[]") -> bytes:
    bare = json.dumps(SPEC)[:-1]
    return filled(unit, f'{bare}, "{field}": {brackets[0]}', f"{brackets[1]}}}")


BODIES = {
    "unknown fields": filled('"f{}": 1', "{", "}"),
    "fields that resemble known ones": filled('"epoch{}": 1', "{", "}"),
    "a long name": b'{"%s": 1}' % (b"e" * 999_000),
    "a number": b'{"name": %s}' % (b"9" * 999_000),
    "escapes": b'{"name": "%s"}' % (b"\\u0041" * 160_000),
    "lists within lists": b"[" * 24_000 + b"]" * 24_000,
    "objects within objects": b'{"a":' * 24_000,
    "more values than there may be": b"[" + b"1," * 499_000 + b"1]",
    "texts": b"[" + b'"",' * 333_000 + b'""]',
    "no text": b'{"a": "' + b"\xff" * 999_000 + b'"}',
}
SPECS = {
    "a point of a curve": json.dumps(SPEC | {"curve": [[1, 1.0]]}).encode(),
    "points of a curve": spec_with("curve", "[{}, {}.5]").replace(b"[0, 0.5],", b""),
    "no points of a curve": spec_with("curve", '["x", "y"]'),
    "types of nodes": spec_with("curves_by_type", '"t{}": [[1, 1.5]]', "{}"),
    "no types of nodes": spec_with("curves_by_type", '"t/{}": [[0, 0]]', "{}"),
    "stages": spec_with("batch_schedule", "[{}, 96]"),
    "no stages": spec_with("batch_schedule", '["x", "y"]'),
    "recipients": spec_with("notify", '{"webhook": "x"}'),
    "arguments": spec_with("arguments", '"a{}": {}', "{}"),
    "lists of arguments": spec_with("arguments", '"a{}": [[[[]]]]', "{}"),
    "a long argument": json.dumps(SPEC | {"arguments": {"a": "x" * 999_000}}).encode(),
    "unknown fields of a part": spec_with("checkpoint", '"keeq{}": 1', "{}"),
    "unknown fields of another part": spec_with("parallel", '"pipelin{}": 1', "{}"),
    "an entrypoint": json.dumps(SPEC | {"entrypoint": "a." * 499_000}).encode(),
    "an instant": json.dumps(SPEC | {"deadline": "2" * 999_000}).encode(),
}


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def looked(api: ApiUnderTest) -> ApiUnderTest:
    """An API whose controller has recorded one snapshot of the nodes."""
    with api.sessions.begin() as session:
        write_snapshot(session, api.scheduler.snapshot(), None)
    send(api, "/v1/trainers/check", json.dumps(SPEC).encode())  # prepares the routes
    return api


def send(api: ApiUnderTest, path: str, body: bytes) -> tuple[Any, float]:
    """The answer, and the CPU seconds that it took."""
    client = getattr(api, WRITES[path])
    before_s = time.process_time()
    response = client.post(path, content=body, headers=HEADERS)
    return response, time.process_time() - before_s


@each("name", BODIES)
def test_no_body_takes_long_whatever_it_says(name: str, looked: ApiUnderTest) -> None:
    slow = {}
    for path in WRITES:
        response, took_s = send(looked, path, BODIES[name])
        assert response.status_code in (400, 413, 422), response.text[:200]
        assert len(response.content) < 100_000
        if took_s > MOST_S:
            slow[path] = took_s
    assert not slow


@each("name", SPECS)
def test_no_spec_takes_long_to_be_read_planned_or_refused(name: str, looked: ApiUnderTest) -> None:
    slow = {}
    for path, body in (
        ("/v1/trainers/check", SPECS[name]),
        ("/v1/trainers/dry-run", b'{"spec": %s}' % SPECS[name][: LARGEST_BODY_BYTES - 20]),
    ):
        response, took_s = send(looked, path, body)
        assert response.status_code in (200, 204, 400, 422), response.text[:200]
        assert len(response.content) < 100_000
        if took_s > MOST_S:
            slow[path] = took_s
    assert not slow


def test_more_values_than_anyone_sends_are_refused_before_they_are_read(looked: ApiUnderTest) -> None:
    response, _ = send(looked, "/v1/trainers", b"[" + b"1," * MOST_VALUES + b"1]")
    assert problem_of(response, 413)["detail"] == TOO_MANY
    commas_in_text = json.dumps(SPEC | {"name": "commas", "arguments": {"x": ',"[{' * 10_000}}).encode()
    assert send(looked, "/v1/trainers", commas_in_text)[0].status_code == 201


@each(
    ("fields", "told"),
    [
        ({"arguments": {"a": "x" * 200_000}}, "and may have 200,000: pass the name of a file"),
        ({"curve": [[number, float(number)] for number in range(1, 1002)]}, "a curve has 1,001 points"),
        ({"curves_by_type": {f"t{number}": [[1, 1.0]] for number in range(101)}}, "curves_by_type has 101 types"),
    ],
    ids=["arguments", "curve", "types"],
)
def test_a_spec_that_would_slow_lists_or_turns_is_refused(
    fields: dict[str, Any], told: str, looked: ApiUnderTest
) -> None:
    for path, body in (("/v1/trainers", SPEC | fields), ("/v1/plans/preview", {"add": [SPEC | fields]})):
        response, _ = send(looked, path, json.dumps(body).encode())
        assert told in problem_of(response, 400)["detail"]


def test_of_many_faults_the_first_are_told(looked: ApiUnderTest) -> None:
    told = problem_of(send(looked, "/v1/trainers", BODIES["unknown fields"])[0], 422)["errors"]
    assert (len(told), told[-1]) == (51, "and more, of which these are the first")
    told = problem_of(send(looked, "/v1/tokens", BODIES["unknown fields"])[0], 422)["errors"]
    assert told[-1].endswith(" more faults")
