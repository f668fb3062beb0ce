"""Many fragments as one job array: what is submitted, how its tasks are known again and cancelled."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from oakum_service.errors import SchedulerError, SubmissionRefused
from oakum_service.schedulers.port import HookEvent, HookKind, OwnJob
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmReservation
from oakum_service.states import NodeState
from slurm_adapter import FAKE, Site, announced, blocked_readings, make_site, node, own, readable
from waiting import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Two idle nodes, and an adapter that has not begun to read."""
    site = make_site(tmp_path)
    yield site
    site.scheduler.stop()


def launch(site: Site, count: int = 8) -> dict[str, str]:
    """Submit fragments f0, f1, ... for as many nodes, of two more."""
    site.source.nodes = tuple(node(f"n{number}") for number in range(count + 2))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.nodes) == count + 2)
    return site.scheduler.submit_any([site.config(f"n{number}", f"f{number}") for number in range(count)])


def test_fragments_that_begin_together_do_not_all_end_together(site: Site) -> None:
    assert launch(site, 32).keys() == {f"f{index}" for index in range(32)}
    scripts = [file.read_text(encoding="utf-8") for file in site.folder.glob("fragments/*/71_submission.sh")]
    limits_min = sorted(int(script.partition("#SBATCH --time=")[2].split()[0]) for script in scripts)
    assert len(limits_min) == 4, "one array a quarter"
    assert limits_min[0] >= 180
    assert limits_min[-1] <= 240
    assert min(after - before for before, after in itertools.pairwise(limits_min)) >= 5


def test_what_a_later_array_is_refused_for_costs_its_own_fragments_alone(site: Site) -> None:
    refuse_second = (
        f"[ -e {site.folder}/once ] && {{ echo 'sbatch: error: Job violates accounting policy' >&2; exit 1; }}; "
        f"touch {site.folder}/once; echo 71"
    )
    (site.folder / "sbatch").write_text(FAKE.format(folder=site.folder, answer=refuse_second), encoding="utf-8")
    assert len(launch(site, 32)) == 8


def array_name(site: Site) -> str:
    """The intent in the name of the array that was submitted last."""
    return site.script_options()["job-name"].removeprefix("oakum-ab12-")


def task(site: Site, index: int | None, *states: str, nodes: str = "", submitted_at: float = 0.0) -> SlurmJob:
    """A task of the array 71, or the record of all that wait."""
    number = 71 if index is None else 72 + index
    job = own(number, array_name(site), *states, nodes=nodes, submitted_at=submitted_at or time.time())
    return msgspec.structs.replace(job, array_job_id=71, array_task_id=index)


def test_an_array_is_kept_off_all_nodes_but_those_of_its_fragments(site: Site) -> None:
    assert launch(site) == {f"f{index}": f"71_{index}" for index in range(8)}
    options = site.script_options()
    wanted = {
        "array": "0-7%8",
        "exclude": "'n[8-9]'",
        "nodelist": None,
        "nodes": "1",
        "time": "186",
        "no-requeue": "",
    }
    assert {name: options.get(name) for name in wanted} == wanted
    assert options["job-name"].startswith("oakum-ab12-")
    assert len(site.calls("sbatch")) == 1


def test_jobs_and_arrays_ask_for_what_the_spec_asks_for_while_it_is_allowed(tmp_path: Path) -> None:
    options = {"qos": "other", "gres": "gpu:4"}
    allowed = {"allow_qos": ["low"], "allow_accounts": ["physics"], "allow_constraints": ["ib", "roce"]}
    allowed["allow_reservations"] = ["ours"]
    site = make_site(tmp_path, qos="fill", options=options, **allowed)
    site.source.nodes = tuple(node(name, features=("ib",)) for name in ("n1", "n2"))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    names = ("qos", "account", "gres", "constraint")
    site.scheduler.submit(site.config(qos="low", account="physics", constraint="ib|roce"))
    assert [site.script_options().get(name) for name in names] == ["low", "physics", "gpu:4", "'ib|roce'"]
    site.scheduler.submit_any([site.config(f"n{number}", f"f{number}", qos="low") for number in (1, 2)])
    assert [site.script_options().get(name) for name in names] == ["low", None, "gpu:4", None]
    site.source.nodes = (node("n1", "IDLE", "RESERVED"), node("n2"))
    site.source.reservations = (SlurmReservation("ours", "n1", time.time() - 5.0, time.time() + 655.0),)
    site.picture(lambda s: s.nodes[0].reservation == "ours")
    site.scheduler.submit(site.config(reservation="ours"))
    assert [site.script_options().get(name) for name in ("reservation", "time")] == ["ours", "10"]
    with pytest.raises(
        SchedulerError, match="n1 is no longer a node that the trainer's slurm options let it have"
    ):
        site.scheduler.submit(site.config())
    with pytest.raises(SubmissionRefused, match=r"slurm\.account: chemistry is not allowed here: give physics"):
        site.scheduler.submit(site.config("n2", account="chemistry"))
    site.scheduler.stop()


def test_an_array_on_all_nodes_of_the_partition_excludes_none(site: Site) -> None:
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.scheduler.submit_any([site.config("n1", "f1"), site.config("n2", "f2")])
    assert "exclude" not in site.script_options()


def test_every_task_finds_its_fragment_and_every_fragment_its_log(site: Site) -> None:
    launch(site, 3)
    fragments = site.folder / "fragments"
    array = fragments / array_name(site)
    written = json.loads((array / "array.json").read_text(encoding="utf-8"))
    addresses = dict.fromkeys(["n0", "n1", "n2"], "10.0.0.1")
    told = {"fragments": ["f0", "f1", "f2"], "addresses": addresses, "node_variable": "SLURMD_NODENAME"}
    assert written == told
    for index in range(3):
        assert (array / f"71_{index}_submitted.pkl").exists()
        (array / f"71_{index}_0_log.out").write_text(f"task {index}", encoding="utf-8")
        [log] = (fragments / f"f{index}").glob("*_log.out")
        assert log.read_text(encoding="utf-8") == f"task {index}"
        config = fragments / f"f{index}" / "fragment.json"
        assert json.loads(config.read_text(encoding="utf-8"))["fragment"] == f"f{index}"
        assert config.stat().st_mode & 0o777 == 0o600


def test_a_node_that_is_wanted_soon_is_left_out_and_the_shortest_limit_holds_for_all(site: Site) -> None:
    site.source.jobs = (announced("n0", in_s=100.0), announced("n1", in_s=655.0))
    assert launch(site, 4) == {"f1": "71_0", "f2": "71_1", "f3": "71_2"}
    options = site.script_options()
    assert (options["time"], options["array"], options["exclude"]) == ("10", "0-2%3", "'n[0,4-5]'")


def test_what_is_left_of_a_group_may_be_one_job_or_none(site: Site) -> None:
    site.source.jobs = (announced("n0", in_s=100.0),)
    assert launch(site, 2) == {"f1": "71"}
    assert (site.script_options()["nodelist"], site.script_options().get("array")) == ("n1", None)
    assert site.scheduler.submit_any([site.config("n0", "f9")]) == {}


def test_an_array_that_is_refused_starts_none_of_its_fragments(site: Site) -> None:
    refuse(site, "Invalid qos specification")
    with pytest.raises(SchedulerError, match="Invalid qos specification"):
        launch(site)
    assert readable(site.scheduler).own_jobs == ()
    assert site.scheduler.array_from == 8


def test_where_slurm_takes_no_arrays_no_other_is_tried(site: Site) -> None:
    refuse(site, "Invalid job array specification")
    with pytest.raises(SchedulerError, match="Invalid job array"):
        launch(site)
    assert site.scheduler.array_from > 1_000_000


def refuse(site: Site, why: str) -> None:
    answer = f"echo 'sbatch: error: Batch job submission failed: {why}' >&2; exit 1"
    (site.folder / "sbatch").write_text(FAKE.format(folder=site.folder, answer=answer), encoding="utf-8")


def test_tasks_that_no_reading_shows_yet_are_among_our_jobs(site: Site) -> None:
    readings: list[list[str]] = []

    def submit_meanwhile() -> None:
        blocking = blocked_readings(site)
        site.scheduler.submit_any([site.config("n1", "f1"), site.config("n2", "f2")])
        readings.append(blocking)

    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.source.on_read = submit_meanwhile
    wait_until("it is submitted and the next reading fails", lambda: readings and site.source.reads > 3)
    assert site.scheduler.snapshot().own_jobs == (OwnJob("71_0", "f1", None), OwnJob("71_1", "f2", None))
    readings[0].clear()
    site.picture(lambda s: not s.own_jobs)


def test_tasks_are_known_by_their_index_on_whichever_node_they_run(site: Site) -> None:
    launch(site, 3)
    site.source.jobs = (task(site, 0, nodes="n2"), task(site, None, "PENDING"))
    shown = site.picture(lambda s: any(job.node for job in s.own_jobs)).own_jobs
    assert set(shown) == {OwnJob("71_0", "f0", "n2"), OwnJob("71_1", "f1", None), OwnJob("71_2", "f2", None)}


def test_a_task_that_has_ended_does_not_wait_with_the_others(site: Site) -> None:
    launch(site, 3)
    site.source.jobs = (task(site, 0, nodes="n2"), task(site, None, "PENDING"))
    site.picture(lambda s: any(job.node for job in s.own_jobs))
    site.source.jobs = (task(site, None, "PENDING"),)
    shown = site.picture(lambda s: not any(job.node for job in s.own_jobs)).own_jobs
    assert set(shown) == {OwnJob("71_1", "f1", None), OwnJob("71_2", "f2", None)}


def test_what_the_tasks_stand_for_is_written_before_slurm_has_heard_of_them(site: Site) -> None:
    look = f"cat {site.folder}/fragments/*/array.json > {site.folder}/seen; exit 1"
    (site.folder / "sbatch").write_text(FAKE.format(folder=site.folder, answer=look), encoding="utf-8")
    with pytest.raises(SchedulerError):
        launch(site, 3)
    assert json.loads((site.folder / "seen").read_text(encoding="utf-8"))["fragments"] == ["f0", "f1", "f2"]
    assert sorted(path.parent.name for path in (site.folder / "fragments").glob("f*/fragment.json")) == [
        "f0",
        "f1",
        "f2",
    ]


def test_one_task_is_cancelled_by_its_own_number_and_not_the_arrays(site: Site) -> None:
    """The last task's own number is the array's, which means all of them."""
    launch(site, 3)
    last = msgspec.structs.replace(task(site, 2, nodes="n2"), id=71)
    site.source.jobs = (task(site, 0, nodes="n0"), task(site, 1, nodes="n1"), last)
    site.picture(lambda s: sum(job.node is not None for job in s.own_jobs) == 3)
    site.scheduler.cancel("f2")
    assert wait_until("it is cancelled", lambda: site.calls("scancel")) == ["--quiet 71_2"]


def test_tasks_that_wait_for_a_node_are_withdrawn_in_one_call_and_the_others_are_not(site: Site) -> None:
    launch(site, 4)
    began_at = time.time() - 60.0
    site.source.jobs = (
        task(site, 2, nodes="n2", submitted_at=began_at),
        task(site, None, "PENDING", submitted_at=began_at),
    )
    assert wait_until("they are withdrawn", lambda: site.calls("scancel")) == ["--quiet 71_[0,1,3]"]


def test_a_new_service_knows_the_tasks_of_an_array_whose_answer_was_never_heard(site: Site) -> None:
    launch(site, 3)
    jobs = (task(site, 1, nodes="n0"), task(site, None, "PENDING"))
    site.source.jobs = jobs
    site.restarted()
    shown = site.picture(lambda s: bool(s.own_jobs)).own_jobs
    assert set(shown) == {OwnJob("71_1", "f1", "n0"), OwnJob("71_0", "f0", None), OwnJob("71_2", "f2", None)}


def test_tasks_of_an_array_that_nobody_knows_are_strangers_that_can_be_cancelled(site: Site) -> None:
    launch(site, 3)
    name = array_name(site)
    (site.folder / "fragments" / name / "array.json").unlink()
    site.source.jobs = (task(site, 1, nodes="n0"), task(site, None, "PENDING"))
    site.restarted()
    shown = site.picture(lambda s: bool(s.own_jobs)).own_jobs
    assert set(shown) == {OwnJob("71_1", f"{name}_1", "n0"), OwnJob("71", name, None)}
    for job in shown:
        site.scheduler.cancel(job.fragment)
    wait_until("all of it is cancelled", lambda: "71" in " ".join(site.calls("scancel")).split())


def test_an_array_whose_file_cannot_be_read_now_is_no_reading(site: Site) -> None:
    """Otherwise a file system that fails for a moment would cost all of the array's fragments."""
    launch(site, 3)
    array_file = site.folder / "fragments" / array_name(site) / "array.json"
    kept = array_file.read_bytes()
    array_file.unlink()
    array_file.mkdir()
    site.source.jobs = (task(site, 1, nodes="n0"),)
    scheduler = site.restarted()
    with pytest.raises(SchedulerError, match=r"array\.json cannot be read"):
        scheduler.snapshot()
    array_file.rmdir()
    array_file.write_bytes(kept)
    wait_until("it is read", lambda: readable(scheduler))
    assert scheduler.snapshot().own_jobs == (OwnJob("71_1", "f1", "n0"),)


@pytest.mark.parametrize(
    ("uid", "partition", "state"),
    [
        (os.getuid(), "fill", NodeState.HOLE),
        (os.getuid() + 1, "fill", NodeState.FOREGROUND),
        (os.getuid(), "main", NodeState.FOREGROUND),
    ],
)
def test_a_hook_of_an_arrays_task_takes_no_node_though_its_number_is_not_known_yet(
    site: Site, uid: int, partition: str, state: NodeState
) -> None:
    launch(site, 3)
    blocked_readings(site)
    site.scheduler.on_hook(HookEvent(HookKind.ALLOCATED, "74", "n1", partition, uid, None, time.time() + 5.0))
    found = site.scheduler.snapshot().node("n1")
    assert found is not None
    assert found.state is state


@pytest.mark.parametrize(
    ("words", "warned"), [("Invalid job id specified", False), ("Access/permission denied", True)]
)
def test_that_a_task_has_ended_before_it_was_cancelled_is_no_news(
    site: Site, caplog: pytest.LogCaptureFixture, words: str, warned: bool
) -> None:
    launch(site, 3)
    site.source.jobs = tuple(task(site, index, "RUNNING", nodes=f"n{index}") for index in range(3))
    site.picture(lambda s: [job.node for job in s.own_jobs] == ["n0", "n1", "n2"])
    answer = f"echo 'scancel: error: Kill job error on job id 71_1: {words}' >&2; exit 1"
    (site.folder / "scancel").write_text(FAKE.format(folder=site.folder, answer=answer), encoding="utf-8")
    site.scheduler.cancel("f1")
    wait_until("it is cancelled", lambda: site.calls("scancel"))
    reads = site.source.reads
    wait_until("it goes on", lambda: site.source.reads >= reads + 2)
    assert any("could not be cancelled" in record.message for record in caplog.records) is warned
