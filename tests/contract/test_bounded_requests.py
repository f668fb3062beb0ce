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

from api_under_test import SPEC, ApiUnderTest, FakeScheduler, problem_of, report
from cells import each
from long_history import insert, repeat
from oakum_service.api.body_limit import LARGEST_BODY_BYTES, MOST_VALUES, num_values
from oakum_service.control.observe import write_snapshot
from oakum_service.db.models.fragments import FragmentState
from oakum_service.node_history import bars
from trained_scene import PROGRESS

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


NOW = 1_800_000_000.0
NODES = 100


@pytest.fixture
def busy(looked: ApiUnderTest) -> ApiUnderTest:
    """An API over a busy week: more stretches, fragments and large specs than answers may hold."""
    trainer: str = looked.submit(name="digits")["id"]
    fragment = looked.add_fragment(trainer, "n1", state=FragmentState.ENDED, ended_at=NOW)
    looked.change_row(trainer, state="finished", submitted_at=NOW, ended_at=NOW)
    times = dict.fromkeys(("launched_at", "training_at", "ended_at"), f"{NOW} - 10.0 * n.i")
    own = {"id": "'f-' || n.i", "node": f"'n' || (n.i % {NODES})"}
    repeat(looked, "fragments", bars.MOST_ENDED + 1000, f"t.id = '{fragment}'", own | times)
    insert(
        looked,
        "node_intervals (node, state, job_name, start_at, end_at)",
        f"'n' || (n.i % {NODES}), 'hole', '', {NOW} - 10.0 * n.i - 900.0, {NOW} - 10.0 * n.i",
        bars.MOST_ENDED + 1000,
    )
    spec = json.dumps(SPEC | {"arguments": {"a": "x" * 190_000}})
    own = {"id": "'t-' || n.i", "spec": f"'{spec}'", "submitted_at": f"{NOW} - n.i"}
    repeat(looked, "trainers", 50, f"t.id = '{trainer}'", own)
    metrics = json.dumps({f"accuracy-of-class-{number}": 0.5 for number in range(1000)})
    insert(
        looked,
        "node_uses (trainer_id, node, at, after_gap, reports, cpu, own_cpu, memory, own_memory, gpu, gpu_memory)",
        f"'{trainer}', 'n' || (n.i % 1000), {NOW} - 10.0 * n.i, 1 = 0, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5",
        12_000,
    )
    insert(looked, "evaluations (trainer_id, step, at, metrics)", f"'{trainer}', n.i, {NOW}, '{metrics}'", 200)
    return looked


def test_an_answer_is_cut_where_it_would_take_long(busy: ApiUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    window = {"from_at": NOW - 6 * 86400, "to_at": NOW, "node": [f"n{number}" for number in range(NODES)]}

    def got(path: str, **asked: Any) -> Any:
        before_s = time.process_time()
        answer = busy.admin.get(path, params=asked)
        took_s[path] = time.process_time() - before_s
        assert answer.status_code == 200, answer.text
        return answer.json()

    took_s: dict[str, float] = {}
    whole = got("/v1/timeline", since_s=604_800, limit=200_000)
    assert whole["is_shortened"] is True
    assert max(len(whole["holes"]), len(whole["fragments"])) <= 5000 + 1
    holes = got("/v1/holes", since_s=604_800, limit=20_000)
    assert (sum(hole["end_at"] is not None for hole in holes["holes"]), holes["next"] is None) == (5000, False)
    rows = got("/v1/timeline/rows", **window)
    for kind in ("stretches", "fragments"):
        assert sum(end_s is not None for end_s in rows[kind]["end_s"]) <= bars.MOST_ENDED
        assert len(rows[kind]["node"]) > 0.9 * bars.MOST_ENDED
    assert window["from_at"] < NOW - 10 * bars.MOST_ENDED < rows["kept_from"] < NOW
    picture = got("/v1/timeline/occupancy", **window, columns=2000, bands=500)
    assert picture["columns"] * len(picture["bands"]) <= 200_000
    uses = got("/v1/trainers/digits/node-use", limit=1000)
    assert (len(uses["nodes"]), len(uses["points"]) <= 1001) == (200, True)
    assert max(took_s.values()) < 3 * MOST_S, took_s


def test_a_page_of_large_trainers_is_short_and_the_next_one_goes_on(busy: ApiUnderTest) -> None:
    seen: list[str] = []
    before: dict[str, str] = {}
    for _ in range(10):
        page = busy.admin.get("/v1/trainers", params={"limit": 500, **before})
        assert len(page.content) < 5_000_000
        seen += [trainer["id"] for trainer in page.json()["trainers"]]
        if page.json()["next"] is None:
            break
        before = {"before": page.json()["next"]}
    assert (len(seen), len(set(seen))) == (51, 51)


def test_a_page_of_large_evaluations_is_short_and_the_next_one_goes_on(busy: ApiUnderTest) -> None:
    steps: list[int] = []
    while page := busy.admin.get(
        "/v1/trainers/digits/evaluations", params={"limit": 5000, "after_step": max(steps, default=-1)}
    ).json()["evaluations"]:
        assert len(page) < 60
        steps += [each["step"] for each in page]
    assert steps == list(range(1, 201))


def test_what_an_agent_reports_is_cut_and_not_refused(looked: ApiUnderTest) -> None:
    fragment = looked.add_fragment(looked.submit()["id"])
    progress = PROGRESS | {"metrics": {"n" * 256: 1.0} | {f"m{number}": 1.0 for number in range(2000)}}
    told = report(progress=progress)
    told |= {"warnings": ["w" * 9000] * 50, "failure": {"stage": "train", "message": "m" * 9000}}
    told["failure"]["traceback"] = "t" * 90_000 + "end"
    answer = looked.fragment_client(fragment).post(f"/v1/fragments/{fragment}/report", json=told)
    assert answer.status_code == 204
    stored = looked.stored_report(fragment)
    assert stored is not None
    assert stored.progress is not None
    assert list(stored.progress.metrics) == [f"m{number}" for number in range(1000)]
    assert [len(warning) for warning in stored.warnings] == [4000] * 10
    assert stored.failure is not None
    assert (len(stored.failure.message), stored.failure.traceback[-3:]) == (4000, "end")
    assert len(stored.failure.traceback) == 20_000
