"""Which GPUs of nodes that jobs share are idle, who has the others, and what a job of ours asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from cells import each
from oakum_service.config import SlurmSettings
from oakum_service.errors import ConfigurationError, SchedulerError
from oakum_service.schedulers.port import HookEvent, HookKind, OwnJob, Snapshot
from oakum_service.schedulers.slurm.hole_policy import Exclusive, HolePolicy
from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.gres import gpus
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmState
from oakum_service.schedulers.slurm.slots import SlotBook
from oakum_service.schedulers.slurm.snapshot import OakumInstance, own_tasks, to_snapshot
from oakum_service.states import NodeState
from slurm_adapter import Site, make_site

INSTANCE = OakumInstance("oakum", "ab12")
POLICY = HolePolicy("fill", parts_are_holes=True)
HOLE, FOREGROUND, AWAY = NodeState.HOLE, NodeState.FOREGROUND, NodeState.UNAVAILABLE


def node(used: int = 0, *flags: str, gres: str = "gpu:a100:4(S:0-1)", **fields: object) -> SlurmNode:
    """A node of 4 GPUs, 16 cores and 64,000 MB, of which jobs have `used` GPUs and four cores for each."""
    values: dict[str, object] = {
        "partitions": ("main", "fill"),
        "gres": gres,
        "gres_used": f"gpu:a100:{used}(IDX:0)",
        "cpus": 16,
        "used_cpus": 4 * used,
        "memory_mb": 64_000,
        "used_memory_mb": 16_000 * used,
    }
    states = ("MIXED" if used else "IDLE", *flags)
    return SlurmNode("n1", "n1", states, **(values | fields))


def job(number: int, gres: str = "gres/gpu:a100:1", *states: str, **fields: object) -> SlurmJob:
    values = {"name": f"job{number}", "user": "alice", "partition": "main", "nodes": "n1"} | fields
    return SlurmJob(id=number, states=states or ("RUNNING",), gres_per_node=gres, **values)


def own(number: int, fragment: str, *states: str, gres: str = "gres/gpu:a100:1") -> SlurmJob:
    return job(number, gres, *states, name=INSTANCE.job_name(fragment), user="oakum", partition="fill")


def look(node: SlurmNode, *jobs: SlurmJob, book: SlotBook | None = None, whole: tuple[str, ...] = ()) -> Snapshot:
    """The snapshot; in the partitions `whole` each job gets whole nodes."""
    state = SlurmState(1000.0, "22.05.8", (node,), jobs)
    policy = dataclasses.replace(POLICY, exclusive=Exclusive(whole=frozenset(whole)))
    return to_snapshot(state, INSTANCE, policy, own_tasks(jobs, INSTANCE), book=book)


def states(snapshot: Snapshot) -> list[NodeState]:
    return [node.state for node in snapshot.nodes]


def test_each_gpu_of_a_shared_node_is_a_hole_of_its_own() -> None:
    seen = look(node(2), own(71, "f1"), job(72))
    assert [one.name for one in seen.nodes] == ["n1:0", "n1:1", "n1:2", "n1:3"]
    assert states(seen) == [HOLE, FOREGROUND, HOLE, HOLE]
    assert [one.job for one in seen.nodes] == [None, "72", None, None]
    assert {one.node_type for one in seen.nodes} == {"a100"}
    assert seen.own_jobs == (OwnJob("71", "f1", "n1:0"),)


@each(
    ("seen", "expected"),
    [
        (node(1, used_cpus=13), [FOREGROUND] * 4),
        (node(1, used_cpus=8), [FOREGROUND, HOLE, HOLE, FOREGROUND]),
        (node(1, used_memory_mb=40_000), [FOREGROUND, HOLE, FOREGROUND, FOREGROUND]),
        (node(1, cpus=0, memory_mb=0), [FOREGROUND, HOLE, HOLE, HOLE]),
        (node(1, gres_drained="gpu:a100:2(IDX:2-3)"), [FOREGROUND, HOLE, FOREGROUND, FOREGROUND]),
        (node(1, "DRAIN"), [AWAY] * 4),
        (node(1, "COMPLETING"), [FOREGROUND, HOLE, HOLE, HOLE]),
    ],
)
def test_a_gpu_that_no_job_of_ours_would_get_is_no_hole(seen: SlurmNode, expected: list[NodeState]) -> None:
    assert states(look(seen, job(72))) == expected


def test_a_drained_gpu_of_an_idle_node_is_away() -> None:
    assert states(look(node(0, gres_drained="gpu:a100:1(IDX:3)"))) == [HOLE, HOLE, HOLE, AWAY]


def test_a_job_that_leaves_keeps_its_gpu_and_nobody_elses() -> None:
    seen = look(node(3, "COMPLETING"), own(71, "f1"), own(72, "f2", "COMPLETED", "COMPLETING"), job(73))
    assert states(seen) == [HOLE, AWAY, FOREGROUND, HOLE]
    assert [one.clearing for one in seen.nodes] == [False, True, False, False]


def test_gpus_of_jobs_that_nobody_shows_us_are_taken() -> None:
    seen = look(node(3), own(71, "f1"))
    assert states(seen) == [HOLE, FOREGROUND, FOREGROUND, HOLE]
    assert [one.job for one in seen.nodes[1:3]] == ["unknown", "unknown"]


@each(
    "written", ["gres:gpu:0k", "gres:gpu:+1", "gpu:a100:1:2", "gres/gpu:" + "9" * 5000, "gres/gpu:((((", ",gpu:,"]
)
def test_a_users_odd_words_keep_no_gpu_from_anybody_and_free_none(written: str) -> None:
    book = SlotBook()
    assert states(look(node(2), own(71, "f1"), job(72, written), book=book)) == [HOLE, FOREGROUND, HOLE, HOLE]
    assert book.unread == {}


def test_a_node_with_jobs_that_does_not_tell_how_many_gpus_they_have_is_away() -> None:
    book = SlotBook()
    assert states(look(node(1, gres_used=""), job(72), book=book)) == [AWAY]
    assert book.unread == {"n1": "gres_used is '', expected how many of gpu:a100:4(S:0-1) jobs have"}


def test_slots_stay_with_their_jobs_as_others_come_and_go() -> None:
    book = SlotBook({"f1": "n1:2"}.get)
    assert look(node(2), own(71, "f1"), job(80), book=book).own_jobs == (OwnJob("71", "f1", "n1:2"),)
    later = look(node(2), own(71, "f1"), job(90), book=book)
    assert states(later) == [FOREGROUND, HOLE, HOLE, HOLE]
    more = look(node(3), own(71, "f1"), job(85), job(90), book=book)
    assert [one.job for one in more.nodes] == ["90", "85", None, None]


def test_a_node_of_which_jobs_have_more_gpus_than_it_has_is_away_and_told() -> None:
    book = SlotBook()
    assert states(look(node(5), job(72), book=book)) == [AWAY]
    assert book.unread == {"n1": "gres_used is 'gpu:a100:5(IDX:0)', expected at most gpu:a100:4(S:0-1)"}


def test_a_fragment_of_several_slots_is_shown_with_all_of_them() -> None:
    book = SlotBook({"f1": "n1:1+3"}.get)
    seen = look(node(3), own(71, "f1", gres="gres/gpu:a100:2"), job(80), book=book)
    assert seen.own_jobs == (OwnJob("71", "f1", "n1:1+3"),)
    assert states(seen) == [FOREGROUND, HOLE, HOLE, HOLE]
    later = look(node(2), own(71, "f1", gres="gres/gpu:a100:2"), book=SlotBook())
    assert later.own_jobs == (OwnJob("71", "f1", "n1:0+1"),), "where nobody knows it any more, any will do"


def test_a_node_on_which_a_job_of_ours_has_all_stays_one_hole() -> None:
    seen = look(node(0, used_cpus=16), own(71, "f1", gres=""))
    assert [(one.name, one.state) for one in seen.nodes] == [("n1", HOLE)]
    assert seen.own_jobs == (OwnJob("71", "f1", "n1"),)


@each(
    ("partitions", "whole", "is_shared"),
    [
        (("main", "fill"), (), True),
        (("main", "fill"), ("fill",), False),
        (("main", "fill"), ("main",), False),
        (("main", "big", "fill"), ("big",), True),
        (("main", "big", "fill"), ("big", "main"), False),
        (("fill",), ("main",), True),
    ],
)
def test_a_node_is_given_as_a_whole_where_jobs_get_whole_nodes(
    partitions: tuple[str, ...], whole: tuple[str, ...], is_shared: bool
) -> None:
    seen = look(node(partitions=partitions), whole=whole)
    assert [one.name for one in seen.nodes] == (["n1:0", "n1:1", "n1:2", "n1:3"] if is_shared else ["n1"])
    assert set(states(seen)) == {HOLE}


@each(("is_preempted", "expected"), [(True, AWAY), (False, HOLE)])
def test_a_node_that_has_jobs_of_one_user_only_is_left_to_them_as_slurm_preempts_none_there(
    is_preempted: bool, expected: NodeState
) -> None:
    state = SlurmState(1000.0, "22.05.8", (node(1), msgspec.structs.replace(node(0), name="n2")), (own(71, "f1"),))
    exclusive = Exclusive(one_user=frozenset(["main"]))
    for parts in (True, False):
        policy = HolePolicy("fill", parts_are_holes=parts, is_preempted=is_preempted, exclusive=exclusive)
        seen = to_snapshot(state, INSTANCE, policy, own_tasks(state.jobs, INSTANCE))
        assert set(states(seen)) == {expected}
        assert {one.wanted for one in seen.nodes} == {"EXCLUSIVE_USER" if is_preempted else ""}


def test_a_node_that_jobs_share_no_more_stays_in_parts_until_our_jobs_there_have_ended() -> None:
    book = SlotBook({"f1": "n1:2", "f2": "n1"}.get)
    before = look(node(1), own(71, "f1"), book=book, whole=("fill",))
    assert states(before) == [AWAY, AWAY, HOLE, AWAY], "nothing new begins there"
    assert before.own_jobs == (OwnJob("71", "f1", "n1:2"),)
    assert [one.name for one in look(node(0), book=book, whole=("fill",)).nodes] == ["n1"]
    after = look(node(4), own(72, "f2", gres="gres/gpu:a100:4"), book=book, whole=("fill",))
    assert after.own_jobs == (OwnJob("72", "f2", "n1"),), "however the site's options ask for all GPUs"


def test_gpus_of_several_types_are_told_apart() -> None:
    mixed = node(0, gres="gpu:a100:1,gpu:a100_1g.5gb:2,shard:8", gres_used="gpu:a100_1g.5gb:1", used_cpus=4)
    seen = look(mixed, job(72, "gres/gpu:a100_1g.5gb:1"))
    assert [(one.node_type, one.state) for one in seen.nodes] == [
        ("a100", HOLE),
        ("a100_1g.5gb", FOREGROUND),
        ("a100_1g.5gb", HOLE),
    ]


@each(
    ("given", "expected"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:4", {"": 4}),
        ("gpu", {"": 1}),
        ("gres/gpu=2", {"": 2}),
        ("gres:gpu:h100:2", {"h100": 2}),
        ("gres/gpu:h100:2", {"h100": 2}),
        ("gres/gpu:h100=2", {"h100": 2}),
        ("gpu:a100", {"a100": 1}),
        ("gpu:a100:2(IDX:0,2),gpu:a100_1g.5gb:7(IDX:0-6),shard:8", {"a100": 2, "a100_1g.5gb": 7}),
        ("(null)", {}),
        ("N/A", {}),
        ("craynetwork:4,license:a", {}),
    ],
)
def test_gres_tells_how_many_gpus_of_which_type(given: str, expected: dict[str, int]) -> None:
    assert gpus("gres", given) == expected


def test_a_node_whose_gpus_cannot_be_read_is_away_and_told() -> None:
    book = SlotBook()
    seen = look(node(gres="gpu:a100:many"), book=book)
    assert [(one.name, one.state) for one in seen.nodes] == [("n1", AWAY)]
    assert book.unread == {"n1": "gres is 'gpu:a100:many', expected GRES such as gpu:a100:4"}
    with pytest.raises(FieldError, match="many"):
        gpus("gres", "gpu:a100:many")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An adapter to a node that is given in parts."""
    site = make_site(tmp_path, slots="gpu")
    site.source.nodes = (node(1),)
    site.source.jobs = (job(72),)
    yield site
    site.scheduler.stop()


def begun(site: Site, wanted: Callable[[Snapshot], bool] = lambda s: len(s.nodes) == 4) -> Snapshot:
    site.scheduler.start(lambda: None)
    return site.picture(wanted)


def test_a_fragment_asks_for_one_gpu_and_its_share_of_the_node(site: Site) -> None:
    begun(site)
    site.scheduler.submit(site.config("n1:1"))
    options = site.script_options()
    asked = ("nodelist", "gres", "cpus-per-task", "mem", "exclusive")
    assert [options.get(name) for name in asked] == ["n1", "gpu:a100:1", "4", "16000M", None]
    with pytest.raises(SchedulerError, match=r"n1:0 is not idle any more: Slurm has it, or keeps it, for job 72"):
        site.scheduler.submit(site.config("n1:0"))


def test_a_fragment_asks_for_the_node_where_jobs_get_whole_nodes_and_for_a_gpu_elsewhere(site: Site) -> None:
    shown = "PartitionName=big OverSubscribe=EXCLUSIVE State=UP\nPartitionName=fill OverSubscribe=NO State=UP\n"
    (site.folder / "scontrol").write_text(f"#!/bin/sh\ncat <<END\n{shown}END\n", encoding="utf-8")
    (site.folder / "scontrol").chmod(0o755)
    of_big = msgspec.structs.replace(node(0), name="n2", address="n2", partitions=("big", "fill"))
    site.source.nodes = (node(1), of_big)
    seen = begun(site, lambda s: len(s.nodes) == 5)
    assert [one.name for one in seen.nodes] == ["n1:0", "n1:1", "n1:2", "n1:3", "n2"]
    asked = ("nodelist", "gres", "exclusive")
    site.scheduler.submit(site.config("n2", "f2"))
    assert [site.script_options().get(name) for name in asked] == ["n2", None, ""]
    site.scheduler.submit(site.config("n1:1", "f1"))
    assert [site.script_options().get(name) for name in asked] == ["n1", "gpu:a100:1", None]


def test_options_that_ask_for_gpus_beside_what_fragments_ask_for_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"leave exclusive and gres out of OAKUM_SLURM_OPTIONS"):
        SlurmSettings(slots="gpu", options={"gres": "gpu:4", "exclusive": "", "mem": "4G"})
    SlurmSettings(slots="gpu", options={"mem": "4G"})
    SlurmSettings(slots="node", options={"gres": "gpu:4"})


def test_a_fragment_of_several_slots_asks_for_as_many_gpus_and_shares(site: Site) -> None:
    begun(site)
    site.scheduler.submit(site.config("n1:1+2+3"))
    options = site.script_options()
    asked = ("nodelist", "gres", "cpus-per-task", "mem", "exclusive")
    assert [options.get(name) for name in asked] == ["n1", "gpu:a100:3", "12", "48000M", None]
    with pytest.raises(SchedulerError, match=r"n1:0 is not idle any more"):
        site.scheduler.submit(site.config("n1:0+1"))


def test_a_hook_takes_only_what_no_job_of_ours_has(site: Site) -> None:
    site.source.nodes = (node(1),)
    site.source.jobs = (msgspec.structs.replace(own(71, "f1"), submitted_at=1.0),)
    seen = begun(site)
    assert states(seen) == [HOLE] * 4
    site.source.error = SchedulerError("no answer for now")
    site.scheduler.on_hook(HookEvent(HookKind.ALLOCATED, "500", "n1", "main", 7, seen.taken_at, seen.taken_at + 2))
    assert states(site.picture(lambda s: s.nodes[1].job == "500")) == [HOLE, FOREGROUND, FOREGROUND, FOREGROUND]
