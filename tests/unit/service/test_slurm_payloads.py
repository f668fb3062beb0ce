"""Slurm's JSON, in the shapes of every parser from 21.08 to 25.11."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cells import each
from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading import payloads
from oakum_service.schedulers.slurm.reading.payloads import Origin
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation
from oakum_service.schedulers.slurm.snapshot import is_live
from slurm_payloads import RELEASES, answer, generation, job, node, number, recorded, reservation, unlimited

ORIGIN = Origin("`squeue --json`", "Slurm 1.2.3")

every_parser = pytest.mark.parametrize("parser", RELEASES)
parsers_with_plans = pytest.mark.parametrize("parser", [p for p in RELEASES if generation(p) >= 39])


def read_job(parser: str, *states: str, **fields: Any) -> SlurmJob | None:
    values = payloads.read_jobs(answer(parser, "jobs", [job(parser, 7, *states, **fields)]), ORIGIN).values
    return values[0] if values else None


def why_unread(shape: dict[str, Any], parser: str = "v0.0.44") -> str:
    """Why one job of an answer cannot be understood."""
    (unread,) = payloads.read_jobs(answer(parser, "jobs", [shape]), ORIGIN).unread
    return unread.why


def read_node(parser: str, *states: str, **fields: Any) -> SlurmNode:
    return payloads.read_nodes(answer(parser, "nodes", [node(parser, "n1", *states, **fields)]), ORIGIN).values[0]


@every_parser
def test_a_node_reads_the_same_from_every_parser(parser: str) -> None:
    assert read_node(parser, "IDLE", "DRAIN", "MAINT", "COMPLETING") == SlurmNode(
        name="n1",
        address="10.0.0.2",
        states=("IDLE", "DRAIN", "MAINT", "COMPLETING"),
        partitions=("main", "fill"),
        gres="gpu:h100:4(S:0-1)",
        gres_used="gpu:h100:1(IDX:0)",
        cpus=2,
        used_cpus=1,
        memory_mb=3500,
        used_memory_mb=1000,
        features=("ib", "h100"),
    )


@every_parser
def test_a_running_job_reads_the_same_from_every_parser(parser: str) -> None:
    assert read_job(parser, "RUNNING", nodes="n1") == SlurmJob(
        id=7,
        name="train",
        user="ada",
        partition="main",
        states=("RUNNING",),
        qos="normal",
        nodes="n1",
        num_nodes=1,
        submitted_at=1_700_000_000.0,
        start_at=1_700_000_100.0,
        end_at=1_700_003_700.0,
        gres_per_node="gres/gpu:1",
    )


@every_parser
def test_a_held_job_has_no_times_that_it_was_not_given(parser: str) -> None:
    open_time = number(parser, 0, time=True)
    found = read_job(parser, "PENDING", start_time=open_time, end_time=open_time)
    assert found is not None
    assert (found.start_at, found.end_at, found.preempted_at, found.nodes) == (None, None, None, "")


@every_parser
def test_an_unlimited_job_never_ends(parser: str) -> None:
    found = read_job(parser, "RUNNING", nodes="n1", time_limit=unlimited(parser))
    assert found is not None
    assert found.end_at == math.inf


@every_parser
def test_tasks_of_an_array_say_so(parser: str) -> None:
    found = read_job(
        parser, "RUNNING", nodes="n1", array_job_id=number(parser, 5), array_task_id=number(parser, 0)
    )
    assert found is not None
    assert (found.array_job_id, found.array_task_id) == (5, 0)


@every_parser
def test_a_preempted_job_says_since_when(parser: str) -> None:
    found = read_job(parser, "RUNNING", nodes="n1", preempt_time=number(parser, 1_700_000_200, time=True))
    assert found is not None
    assert found.preempted_at == 1_700_000_200.0


@parsers_with_plans
def test_a_pending_job_says_where_it_is_planned(parser: str) -> None:
    found = read_job(parser, "PENDING", scheduled_nodes="n[1-4]")
    assert found is not None
    assert found.planned_nodes == "n[1-4]"


@parsers_with_plans
def test_plans_that_ought_to_be_told_are_missed(parser: str) -> None:
    told = job(parser, 7, "PENDING")
    del told["scheduled_nodes"]
    (unread,) = payloads.read_jobs(answer(parser, "jobs", [told]), ORIGIN).unread
    assert "job 7: scheduled_nodes is 'missing'" in unread.why


@every_parser
def test_a_completing_job_still_holds_its_nodes(parser: str) -> None:
    found = read_job(parser, "CANCELLED", "COMPLETING", nodes="n1")
    assert found is not None
    assert found.nodes == "n1"
    assert "COMPLETING" in found.states


@every_parser
@each("state", ["COMPLETED", "FAILED", "DEADLINE"])
def test_a_job_that_has_ended_is_left_out(parser: str, state: str) -> None:
    assert read_job(parser, state, nodes="n1") is None


@every_parser
@each("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT"])
def test_a_job_whose_end_says_why_is_told_though_it_has_ended(parser: str, state: str) -> None:
    found = read_job(parser, state, nodes="n1")
    assert found is not None
    assert (found.states, found.nodes) == ((state,), "n1")


@every_parser
def test_a_job_that_went_when_it_was_preempted_is_told_though_it_has_ended(parser: str) -> None:
    found = read_job(parser, "COMPLETED", nodes="n1", preempt_time=number(parser, 1_700_000_200, time=True))
    assert found is not None
    assert (found.states, found.preempted_at) == (("COMPLETED",), 1_700_000_200.0)


@every_parser
def test_a_pending_job_says_why(parser: str) -> None:
    found = read_job(parser, "PENDING", state_reason="Dependency")
    assert found is not None
    assert found.reason == "Dependency"


@every_parser
@each(("flag", "base"), [("CONFIGURING", "RUNNING"), ("STOPPED", "RUNNING"), ("REQUEUE_HOLD", "PENDING")])
def test_a_flag_alone_tells_the_base_state(parser: str, flag: str, base: str) -> None:
    found = read_job(parser, base, flag, nodes="n1")
    assert found is not None
    assert found.states == (base, flag)


@every_parser
def test_reservations_read_the_same_from_every_parser(parser: str) -> None:
    body = answer(parser, "reservations", [reservation(parser, "maint")])
    assert payloads.read_reservations(body, ORIGIN).values == (
        SlurmReservation("maint", "n[1-2]", 1_700_010_000.0, 1_700_020_000.0, ("MAINT", "IGNORE_JOBS")),
    )


@every_parser
def test_the_release_that_answered_is_known(parser: str) -> None:
    assert payloads.read_version(answer(parser, "pings", []), ORIGIN) == RELEASES[parser]


def test_signs_behind_a_state_are_flags() -> None:
    assert read_node("v0.0.44", "DOWN*").states == ("DOWN", "NOT_RESPONDING")
    assert read_node("v0.0.38", "IDLE~").states == ("IDLE", "POWERED_DOWN")


def test_times_that_old_parsers_let_through_are_no_times() -> None:
    found = read_job("v0.0.38", "PENDING", start_time=2**32 - 2, end_time=2**64 - 2)
    assert found is not None
    assert (found.start_at, found.end_at) == (None, None)


def test_a_name_that_is_no_text_does_not_hide_the_jobs() -> None:
    body = answer("v0.0.44", "jobs", [job("v0.0.44", 7, "RUNNING", nodes="n1", name="AAA")])
    (found,) = payloads.read_jobs(body.replace(b"AAA", b"\xff\xc3x"), ORIGIN).values
    assert (found.id, found.nodes) == (7, "n1")


def without(shape: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if name != field}


@every_parser
@each("field", ["job_id", "name", "user_name"])
def test_a_job_that_might_be_ours_and_lacks_a_field_is_an_error_that_names_it(parser: str, field: str) -> None:
    shapes = [job(parser, 6, "RUNNING", nodes="n2"), without(job(parser, 7, "RUNNING", nodes="n1"), field)]
    named = "job number 1" if field == "job_id" else "job 7"
    with pytest.raises(PayloadError, match=rf"`squeue --json` \(Slurm 1.2.3\), {named}: {field} is missing"):
        payloads.read_jobs(answer(parser, "jobs", shapes), ORIGIN)


@every_parser
@each("field", ["job_state", "nodes", "node_count", "start_time", "partition"])
def test_any_other_job_without_a_field_costs_itself_and_is_named(parser: str, field: str) -> None:
    shapes = [job(parser, 6, "RUNNING", nodes="n2"), without(job(parser, 7, "RUNNING", nodes="n1"), field)]
    found = payloads.read_jobs(answer(parser, "jobs", shapes), ORIGIN)
    assert [(one.id, one.nodes, is_live(one)) for one in found.values] == [
        (6, "n2", True),
        (7, "" if field == "nodes" else "n1", True),
    ]
    (unread,) = found.unread
    assert f"`squeue --json` (Slurm 1.2.3), job 7: {field} is missing" in unread.why


@every_parser
@each("field", ["state", "partitions", "gres", "active_features"])
def test_a_node_without_a_field_is_an_error_that_names_it(parser: str, field: str) -> None:
    with pytest.raises(PayloadError, match=rf"node n1: {field} is missing"):
        payloads.read_nodes(answer(parser, "nodes", [without(node(parser, "n1"), field)]), ORIGIN)


def test_a_base_state_whose_flags_are_missing_is_an_error() -> None:
    shape = without(node("v0.0.38", "n1", "IDLE", "DRAIN"), "state_flags")
    with pytest.raises(PayloadError, match="node n1: state_flags is 'missing'"):
        payloads.read_nodes(answer("v0.0.38", "nodes", [shape]), ORIGIN)


@each("states", [["NEW"], [], ["IDLE", "ALLOCATED"], ["IDLE", "?"], ["IDLE", 3]])
def test_a_node_whose_states_make_no_sense_is_unavailable_and_the_others_are_read(states: list[Any]) -> None:
    shapes = [node("v0.0.44", "n1", state=states), node("v0.0.44", "n2", "IDLE")]
    found = payloads.read_nodes(answer("v0.0.44", "nodes", shapes), ORIGIN)
    assert [one.states for one in found.values] == [("UNKNOWN",), ("IDLE",)]
    assert found.values[0].partitions == ("main", "fill")
    assert "node n1: state is" in found.unread[0].why


@every_parser
@each("nodes", ["", None])
@each("state", ["RUNNING", "SUSPENDED", "CONFIGURING"])
def test_a_running_job_whose_nodes_are_not_told_is_named(parser: str, state: str, nodes: str | None) -> None:
    assert "job 7: nodes is" in why_unread(job(parser, 7, state, nodes=nodes), parser)


@each(
    ("value", "said"),
    [
        ("soon", "start_time is 'soon'"),
        ({"set": True}, "start_time is"),
        (-5, "start_time is -5"),
        ([], "start_time"),
    ],
)
def test_an_unreadable_time_is_named_and_never_a_zero(value: Any, said: str) -> None:
    assert said in why_unread(job("v0.0.44", 7, "RUNNING", nodes="n1", start_time=value))


def test_a_node_count_that_is_not_set_is_named() -> None:
    count = {"set": False, "infinite": False, "number": 0}
    assert "job 7: node_count is 'not set'" in why_unread(job("v0.0.44", 7, "PENDING", node_count=count))


@each(
    "error",
    [
        {"error": "Unable to contact slurm controller", "errno": 1800},
        {"description": "Unable to contact slurm controller", "error_number": 1800, "source": "slurm_load_jobs()"},
        "Unable to contact slurm controller",
    ],
)
def test_errors_in_an_answer_are_errors(error: Any) -> None:
    body = answer("v0.0.44", "jobs", [], errors=[error])
    with pytest.raises(PayloadError, match="Unable to contact slurm controller"):
        payloads.read_jobs(body, ORIGIN)


@each("body", [b"", b"slurm_load_jobs error", b'{"jobs": [', b"[]", b"null", b'{"sinfo": []}'])
def test_what_is_no_list_of_jobs_is_no_empty_one(body: bytes) -> None:
    with pytest.raises(PayloadError, match=r"`squeue --json` \(Slurm 1.2.3\)"):
        payloads.read_jobs(body, ORIGIN)


def test_a_cluster_without_nodes_is_an_error() -> None:
    with pytest.raises(PayloadError, match="PrivateData"):
        payloads.read_nodes(answer("v0.0.44", "nodes", []), ORIGIN)


def test_a_reservation_without_an_end_costs_its_nodes_and_is_named() -> None:
    body = answer("v0.0.44", "reservations", [reservation("v0.0.44", "r", end_time=number("v0.0.44", None))])
    found = payloads.read_reservations(body, ORIGIN)
    assert (found.values, found.unread[0].nodes) == ((), "n[1-2]")
    assert "reservation r: end_time is 'not set'" in found.unread[0].why


@pytest.mark.parametrize("version", ["24.11", "25.11"])
def test_recorded_nodes_are_read(version: str) -> None:
    body = recorded(version, "slurm-nodes")
    read = payloads.read_nodes(body, ORIGIN)
    told = json.loads(body)
    assert [(n.name, n.states, n.partitions) for n in read.values] == [
        (n["name"], tuple(n["state"]), tuple(n["partitions"])) for n in told["nodes"]
    ]
    assert read.updated_at == told["last_update"]["number"]
    assert payloads.read_nodes(recorded(version, "slurm-node-planned"), ORIGIN).values[0].states == (
        "IDLE",
        "PLANNED",
    )


@pytest.mark.parametrize("version", ["24.11", "25.11"])
def test_recorded_jobs_are_read(version: str) -> None:
    body = recorded(version, "slurm-jobs")
    read = {found.id: found for found in payloads.read_jobs(body, ORIGIN).values}
    ended = {"COMPLETED", "FAILED", "DEADLINE"}
    live = [j for j in json.loads(body)["jobs"] if j["job_state"][0] not in ended or len(j["job_state"]) > 1]
    assert sorted(read) == sorted(told["job_id"] for told in live)
    for told in live:
        found = read[told["job_id"]]
        assert (found.name, found.user, found.nodes) == (told["name"], told["user_name"], told["nodes"])
        assert found.start_at == (told["start_time"]["number"] or None)
        assert found.num_nodes == told["node_count"]["number"]


@each("version", ["24.11", "25.11"])
@each(("name", "state"), [("slurm-job-running", "RUNNING"), ("slurm-job-pending", "PENDING")])
def test_recorded_single_jobs_are_read(version: str, name: str, state: str) -> None:
    (found,) = payloads.read_jobs(recorded(version, name), ORIGIN).values
    assert found.states == (state,)
    assert bool(found.nodes) == (state == "RUNNING")
    assert found.end_at is not None
    assert found.end_at > (found.start_at or 0)
