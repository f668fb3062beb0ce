"""Slurm's format strings: what they say, and what users may write into them."""

from __future__ import annotations

import math

import pytest

from cells import each
from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading import text
from oakum_service.schedulers.slurm.reading.payloads import Origin
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation
from oakum_service.schedulers.slurm.snapshot import is_live

ORIGIN = Origin("`squeue`", "Slurm 20.11.9")
MARK = "oakum-0123456789abcdef"
NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=8 CPUEfctv=30 CPUTot=32 "
    "ActiveFeatures=a100,ib Gres=gpu:a100:4(S:0-1) "
    "GresDrain=gpu:a100:1(IDX:3) GresUsed=gpu:a100:2(IDX:0-1) "
    "NodeAddr=10.0.0.1 NodeHostName=n1 Port=6818 Version=22.05.8 OS=Linux 6.1 #1 SMP  "
    "RealMemory=64000 AllocMem=8000 MemSpecLimit=4000 {state} "
    "Weight=1 Owner=N/A Partitions=main,fill  BootTime=1795259400 {reason}"
)
RESERVATION = (
    "ReservationName=maint StartTime=1795290216 EndTime=1795293816 Duration=01:00:00 Nodes=n[3-4] NodeCnt=2 "
    "Flags=MAINT,IGNORE_JOBS Users=root State=INACTIVE"
)


def line(**fields: str) -> str:
    told = {
        "id": "3",
        "array": "3",
        "task": "N/A",
        "user": "ada",
        "partition": "main",
        "state": "RUNNING",
        "qos": "(null)",
        "nodes": "n3",
        "planned": "(null)",
        "num": "1",
        "submit": "1795283016",
        "start": "1795283020",
        "end": "1795283616",
        "preempted": "N/A",
        "reason": "None",
        "gres": "gres/gpu:a100:1",
        "name": "train",
    } | fields
    return "|".join([*told.values(), MARK]) + "\n"


def read(*lines: str) -> tuple[SlurmJob, ...]:
    found = text.read_jobs("".join(lines).encode(), MARK, ORIGIN)
    assert found.unread == ()
    return found.values


def read_node(state: str, reason: str = "") -> SlurmNode:
    output = NODE.format(state=f"State={state}", reason=reason).encode()
    return text.read_nodes(output, ORIGIN).values[0]


def test_a_running_job_is_read_whole() -> None:
    assert read(line()) == (
        SlurmJob(
            id=3,
            name="train",
            user="ada",
            partition="main",
            states=("RUNNING",),
            nodes="n3",
            num_nodes=1,
            submitted_at=1795283016.0,
            start_at=1795283020.0,
            end_at=1795283616.0,
            reason="None",
            gres_per_node="gres/gpu:a100:1",
        ),
    )


def test_a_pending_job_says_where_it_is_planned_and_when() -> None:
    (job,) = read(line(state="PENDING", nodes="", planned="n[1-4]", num="4"))
    assert (job.states, job.nodes, job.planned_nodes, job.num_nodes) == (("PENDING",), "", "n[1-4]", 4)
    assert job.start_at == 1795283020.0


def test_times_that_are_open_are_none_and_no_limit_is_endless() -> None:
    held, endless = read(line(state="PENDING", nodes="", start="N/A", end="N/A"), line(end="NONE"))
    assert (held.start_at, held.end_at, endless.end_at) == (None, None, math.inf)


def test_tasks_of_an_array_say_so_and_those_not_yet_started_do_not() -> None:
    task, rest = read(line(id="9", array="6", task="7"), line(state="PENDING", nodes="", array="5", task="0-9%2"))
    assert (task.id, task.array_job_id, task.array_task_id) == (9, 6, 7)
    assert (rest.array_job_id, rest.array_task_id) == (5, None)


def test_jobs_that_have_ended_are_left_out_and_completing_ones_are_not() -> None:
    assert [job.states for job in read(line(state="COMPLETED"), line(state="COMPLETING"))] == [("COMPLETING",)]


def test_jobs_that_slurm_has_taken_are_told_though_they_have_ended() -> None:
    at = "1795283500"
    found = read(line(state="PREEMPTED"), line(state="NODE_FAIL"), line(state="COMPLETED", preempted=at))
    found += read(line(state="OUT_OF_MEMORY"))
    assert [(job.states[0], job.preempted_at, job.nodes) for job in found] == [
        ("PREEMPTED", None, "n3"),
        ("NODE_FAIL", None, "n3"),
        ("COMPLETED", 1795283500.0, "n3"),
        ("OUT_OF_MEMORY", None, "n3"),
    ]


@each(
    "name",
    [
        "a|b|c",
        "two\nlines",
        "train|oakum-1\n4|4|N/A|root|main|RUNNING|x|n9|(null)|1|0|0|0|N/A|None|N/A|forged",
        "\n4|4|N/A|root|main|PENDING|x||(null)|1|0|0|0|N/A|None|N/A|forged",
        "",
        "|",
    ],
)
def test_a_name_is_never_taken_for_anything_else(name: str) -> None:
    first, second = read(line(name=name), line(id="4"))
    assert (first.id, first.name, first.nodes, second.id) == (3, name, "n3", 4)


def test_marks_cannot_be_guessed() -> None:
    assert text.new_mark() != text.new_mark()
    assert text.job_format(MARK).startswith("JobID:0|,ArrayJobID:0|,")
    assert text.job_format(MARK).endswith(f",Name:0|{MARK}")


@each(
    ("fields", "said"),
    [
        ({"num": ""}, "num_nodes is ''"),
        ({"start": "tomorrow"}, "start_at is 'tomorrow'"),
        ({"state": ""}, "job_state is"),
        ({"nodes": ""}, "nodes is ''"),
        ({"nodes": "(null)"}, "nodes is ''"),
        ({"nodes": "n[1-"}, "nodes is 'n[1-'"),
        ({"nodes": "n[1-99999]"}, "99,999 nodes: expected at most 65,536"),
    ],
)
def test_an_unreadable_job_costs_itself_and_is_named(fields: dict[str, str], said: str) -> None:
    found = text.read_jobs((line(**fields) + line(id="4")).encode(), MARK, ORIGIN)
    assert [(job.id, job.nodes, is_live(job)) for job in found.values] == [
        (3, "" if "nodes" in fields else "n3", True),
        (4, "n3", True),
    ]
    (unread,) = found.unread
    assert unread.why.startswith("`squeue` (Slurm 20.11.9), job 3: ")
    assert said in unread.why


def test_a_job_without_a_number_is_an_error() -> None:
    with pytest.raises(PayloadError, match="job x: id is 'x'"):
        read(line(id="x"))


def test_a_torn_line_is_an_error() -> None:
    with pytest.raises(PayloadError, match="expected 17 fields"):
        read(line()[:20] + f"|{MARK}\n", line())


def test_a_torn_end_is_an_error() -> None:
    with pytest.raises(PayloadError, match="after the last job"):
        read(line(), line()[:40])


def test_what_comes_before_the_first_job_is_an_error() -> None:
    with pytest.raises(PayloadError, match="slurm_load_jobs"):
        read("slurm_load_jobs error\n", line())


def test_no_jobs_are_none() -> None:
    assert read("") == ()


def test_a_node_is_read_whole() -> None:
    assert read_node("IDLE+DRAIN+PLANNED") == SlurmNode(
        name="n1",
        address="10.0.0.1",
        states=("IDLE", "DRAIN", "PLANNED"),
        partitions=("main", "fill"),
        gres="gpu:a100:4(S:0-1)",
        gres_used="gpu:a100:2(IDX:0-1)",
        gres_drained="gpu:a100:1(IDX:3)",
        cpus=30,
        used_cpus=8,
        memory_mb=60_000,
        used_memory_mb=8000,
        features=("a100", "ib"),
    )


@each(
    ("state", "states"),
    [
        ("DOWN*+DRAIN", ("DOWN", "NOT_RESPONDING", "DRAIN")),
        ("IDLE+CLOUD+POWER", ("IDLE", "CLOUD", "POWERED_DOWN")),
        ("MIXED", ("MIXED",)),
        ("REBOOT*+DRAIN", ("IDLE", "REBOOT_REQUESTED", "NOT_RESPONDING", "DRAIN")),
        ("REBOOT^", ("IDLE", "REBOOT_REQUESTED", "REBOOT_ISSUED")),
        ("RESERVED", ("IDLE", "RESERVED")),
        ("MAINT*", ("IDLE", "MAINT", "NOT_RESPONDING")),
        ("PLANNED", ("IDLE", "PLANNED")),
        ("DRAINED*", ("UNKNOWN", "DRAIN", "NOT_RESPONDING")),
        ("ALLOCATED+", ("ALLOCATED",)),
        ("IDLE+CLOUD+POWERED_DOWN", ("IDLE", "CLOUD", "POWERED_DOWN")),
        *[
            (f"IDLE{sign}", ("IDLE", flag))
            for sign, flag in {
                "*": "NOT_RESPONDING",
                "~": "POWERED_DOWN",
                "#": "POWERING_UP",
                "%": "POWERING_DOWN",
                "!": "POWER_DOWN",
                "$": "MAINT",
                "@": "REBOOT_REQUESTED",
                "^": "REBOOT_ISSUED",
                "-": "PLANNED",
            }.items()
        ],
    ],
)
def test_states_of_every_version_are_read(state: str, states: tuple[str, ...]) -> None:
    assert read_node(state).states == states


def test_a_reason_cannot_change_a_nodes_state() -> None:
    assert read_node("DOWN", "Reason=look: State=IDLE [root@x]").states == ("DOWN",)


@each("state", ["", "idle?", "NEW", "IDLE+ALLOCATED", "3"])
def test_a_node_of_an_unreadable_state_is_unavailable_and_the_others_are_read(state: str) -> None:
    lines = [NODE.format(state=f"State={told}", reason="") for told in (state, "IDLE", "MIXED")]
    found = text.read_nodes("\n".join(lines).encode(), ORIGIN)
    states = [node.states for node in found.values]
    assert (states, found.values[0].partitions) == ([("UNKNOWN",), ("IDLE",), ("MIXED",)], ("main", "fill"))
    assert [(one.kind, one.name) for one in found.unread] == [("node", "n1")]
    assert "node n1: state is" in found.unread[0].why


def test_where_no_node_can_be_understood_none_is_used() -> None:
    with pytest.raises(PayloadError, match=r"no node can be understood: .* state is"):
        read_node("NEW")


def test_no_node_is_an_error() -> None:
    with pytest.raises(PayloadError, match="PrivateData"):
        text.read_nodes(b"", ORIGIN)


def test_reservations_are_read_whole() -> None:
    assert text.read_reservations(RESERVATION.encode(), ORIGIN).values == (
        SlurmReservation("maint", "n[3-4]", 1795290216.0, 1795293816.0, ("MAINT", "IGNORE_JOBS")),
    )
    assert text.read_reservations(b"No reservations in the system\n", ORIGIN).values == ()


def test_times_in_words_are_read_where_seconds_cannot_be_asked_for() -> None:
    words = RESERVATION.replace("1795290216", "2026-11-21T19:43:36")
    assert text.read_reservations(words.encode(), ORIGIN).values[0].start_at == 1795290216.0


def test_a_reservation_without_a_start_is_named() -> None:
    found = text.read_reservations(RESERVATION.replace("1795290216", "Unknown").encode(), ORIGIN)
    assert found.values == ()
    assert (found.unread[0].nodes, "reservation maint: StartTime" in found.unread[0].why) == ("n[3-4]", True)


def test_the_main_schedulers_cycle_is_told_in_seconds() -> None:
    output = (
        b"Main schedule statistics (microseconds):\n\tLast cycle:   8500\n\nBackfilling stats\n\tLast cycle: 9\n"
    )
    assert text.read_cycle_s(output) == 0.0085
    assert text.read_cycle_s(b"nothing") is None
