"""What is told of the jobs and reservations that a scheduler expects to take nodes."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from cells import each
from oakum_service.config import LocalClusterSettings
from oakum_service.control.observe import Observation, newest_observation, write_snapshot
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import AnnouncementsRecord
from oakum_service.documents.announcement import MOST_KEPT, AnnouncedKind, Announcement, Announcements
from oakum_service.documents.node import Node
from oakum_service.node_history.bars import MOST_ANNOUNCED, announced_bars
from oakum_service.schedulers.local import LocalCluster
from oakum_service.schedulers.port import Snapshot
from oakum_service.schedulers.slurm.announcements import announcements
from oakum_service.schedulers.slurm.reading import payloads, text
from oakum_service.schedulers.slurm.reading.payloads import Origin
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmReservation, SlurmState
from oakum_service.states import NodeState
from slurm_payloads import RELEASES, answer, generation, number, reservation, unlimited
from slurm_payloads import job as job_document
from waiting import wait_until

NOW = 1_700_000_500.0
START, END = 1_700_001_000, 1_700_004_600
MARK = "oakum-0123456789abcdef"
ORIGIN = Origin("`squeue`", "Slurm 23.02.7")
PARSERS_WITH_PLANS = [parser for parser in RELEASES if generation(parser) >= 39]
OURS = frozenset({"n1", "n2", "n3"})


def line(**fields: str) -> str:
    """One pending job as `squeue --Format` writes it."""
    told = {"id": "7", "array": "7", "task": "N/A", "user": "ada", "partition": "main", "state": "PENDING"}
    told |= {"qos": "normal", "nodes": "", "planned": "n[1-2]", "num": "2", "submit": "1700000000"}
    told |= {"start": str(START), "end": str(END), "preempted": "N/A", "reason": "Resources", "gres": "N/A"}
    told |= {"name": "cfd"} | fields
    return "|".join([*told.values(), MARK]) + "\n"


def announced_by(
    jobs: tuple[SlurmJob, ...] = (), reservations: tuple[SlurmReservation, ...] = ()
) -> tuple[Announcement, ...]:
    state = SlurmState(NOW, "23.02.7", (), jobs, reservations)
    return announcements(OURS, state, jobs).soonest


CFD = Announcement(AnnouncedKind.JOB, "7", "cfd", "n[1-2]", START, END)


@each(
    ("fields", "told"),
    [
        ({}, [CFD]),
        ({"end": "N/A"}, [replace(CFD, end_at=None)]),
        ({"end": "Unknown"}, [replace(CFD, end_at=None)]),
        ({"end": "NONE"}, [replace(CFD, end_at=None)]),
        ({"end": str(START - 60)}, [replace(CFD, end_at=None)]),
        ({"start": "2023-11-14T22:30:00", "end": "2023-11-14T23:30:00"}, [CFD]),
        ({"id": "9", "array": "9", "task": "1-5%2"}, [replace(CFD, name="9")]),
        ({"id": "11", "array": "9", "task": "3"}, [replace(CFD, name="11")]),
        ({"start": "N/A"}, []),
        ({"start": "Unknown"}, []),
        ({"planned": "(null)"}, []),
        ({"planned": "N/A"}, []),
        ({"planned": "None"}, []),
        ({"state": "RUNNING", "nodes": "n[1-2]"}, []),
        ({"planned": "m[1-4]"}, []),
    ],
)
def test_the_text_of_every_version_tells_what_is_planned(fields: dict[str, str], told: list[Announcement]) -> None:
    read = text.read_jobs(line(**fields).encode(), MARK, ORIGIN)
    assert read.unread == ()
    assert [*announced_by(read.values)] == told


def test_the_parts_of_a_het_job_are_told_each_on_its_nodes() -> None:
    parts = line(id="20", planned="n1", name="leader") + line(id="21", planned="n[2-3]", name="rest")
    read = text.read_jobs(parts.encode(), MARK, ORIGIN)
    assert [(each.name, each.nodes) for each in announced_by(read.values)] == [("20", "n1"), ("21", "n[2-3]")]


@each("parser", PARSERS_WITH_PLANS)
def test_the_json_of_every_version_tells_the_same(parser: str) -> None:
    planned = {"scheduled_nodes": "n[1-2]", "start_time": number(parser, START, time=True)}
    planned |= {"end_time": number(parser, END, time=True), "name": "cfd"}
    jobs = [
        job_document(parser, 7, "PENDING", **planned),
        job_document(parser, 8, "PENDING", **planned | {"time_limit": unlimited(parser)}),
        job_document(parser, 9, "PENDING", **planned | {"start_time": number(parser, None, time=True)}),
        job_document(parser, 10, "PENDING", **planned | {"scheduled_nodes": ""}),
    ]
    held = [reservation(parser, "maint"), reservation(parser, "course", flags=[], node_list="n3")]
    read = payloads.read_jobs(answer(parser, "jobs", jobs), ORIGIN)
    kept = payloads.read_reservations(answer(parser, "reservations", held), ORIGIN)
    assert (read.unread, kept.unread) == ((), ())
    upkeep = Announcement(
        AnnouncedKind.RESERVATION, "maint", "maintenance", "n[1-2]", 1_700_010_000, 1_700_020_000
    )
    assert announced_by(read.values, kept.values) == (
        CFD,
        replace(CFD, name="8", end_at=None),
        replace(upkeep, name="course", title="", nodes="n3"),
        upkeep,
    )


def test_a_reservation_is_told_until_it_is_over() -> None:
    held = SlurmReservation("held", "n1", NOW - 60.0, math.inf)
    over = SlurmReservation("over", "n1", NOW - 60.0, NOW)
    elsewhere = SlurmReservation("elsewhere", "m[1-9]", NOW, NOW + 60.0)
    (told,) = announced_by(reservations=(held, over, elsewhere))
    assert (told.name, told.start_at, told.end_at) == ("held", NOW - 60.0, None)


def test_of_10000_planned_jobs_the_soonest_are_kept_and_the_others_counted() -> None:
    jobs = tuple(
        SlurmJob(i, "x", "ada", "main", ("PENDING",), planned_nodes="n1", start_at=NOW + 10_000 - i)
        for i in range(10_000)
    )
    told = announcements(OURS, SlurmState(NOW, "23.02.7", (), jobs), jobs)
    assert (len(told.soonest), told.left_out) == (MOST_KEPT, 10_000 - MOST_KEPT)
    assert (told.soonest[0].name, told.soonest[-1].name) == ("9999", str(10_000 - MOST_KEPT))


def test_what_is_announced_for_a_node_is_told_of_its_slots_while_it_is_not_over() -> None:
    job, over, later = CFD, replace(CFD, name="8", end_at=NOW), replace(CFD, name="9", start_at=END)
    bars = announced_bars([later, over, job], ["n1:0", "n1:1", "n2", "n4"], NOW, END + 1.0)
    assert [(bar.node, bar.what.name) for bar in bars] == [
        *(("n1:0", "7"), ("n1:0", "9"), ("n1:1", "7")),
        *(("n1:1", "9"), ("n2", "7"), ("n2", "9")),
    ]
    assert [bar.what.name for bar in announced_bars([later, job], ["n2", "n2"], NOW, END)] == ["7"]
    many = [replace(CFD, name=str(i), start_at=START + i) for i in range(30)]
    assert [bar.what.name for bar in announced_bars(many[::-1], ["n1"], NOW, math.inf)] == [
        str(i) for i in range(MOST_ANNOUNCED)
    ]


def test_what_was_told_last_takes_the_place_of_what_was_told_before(sessions: Sessions) -> None:
    """Also where a service starts again, and where nothing is announced any more."""
    nodes = (Node("n1", NodeState.HOLE, "10.0.0.1"),)
    told = [Announcements((replace(CFD, start_at=START + i),), left_out=i) for i in range(3)]
    last: Observation | None = None
    for index, announced in enumerate([*told, told[-1], Announcements()]):
        with sessions.begin() as session:
            last = newest_observation(session) if index > 1 else last
            last = write_snapshot(session, Snapshot(time.time(), nodes, (), announced=announced), last)
        with sessions.begin() as session:
            found = newest_observation(session)
            assert found is not None
            assert (found.snapshot.announced, found.number) == (announced, 1)
            assert session.scalar(select(func.count()).select_from(AnnouncementsRecord)) == 1


def test_the_embedded_cluster_announces_its_first_waiting_job(tmp_path: Path) -> None:
    cluster = LocalCluster(LocalClusterSettings(nodes=3, load=0.0, fork_server=False), tmp_path)
    cluster.start(lambda: None)
    try:
        assert cluster.snapshot().announced == Announcements()
        cluster.submit_foreground(2, 3600.0)
        first, _ = cluster.submit_foreground(3, 60.0), cluster.submit_foreground(3, 60.0)
        (told,) = wait_until("an announcement", lambda: cluster.snapshot().announced.soonest)
        ends_at = time.time() + 3600.0
    finally:
        cluster.stop()
    assert (told.kind, told.name) == (AnnouncedKind.JOB, first)
    assert sorted(told.nodes.split(",")) == ["node1", "node2", "node3"]
    assert (told.start_at, told.end_at) == (pytest.approx(ends_at, abs=300.0), told.start_at + 60.0)
