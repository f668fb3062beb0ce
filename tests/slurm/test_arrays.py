"""Many fragments as one job array on a real Slurm, which chooses the node of each."""

from __future__ import annotations

import json
import time

import pytest

from oakum_service.api.schemas.trainers import TrainerChange
from oakum_worker.spec import TrainerSpec
from running_service import nodes_of_fragments, small_spec, wait_for_size
from slurm_service import SlurmService, step_of, wait_for_starts
from slurm_site import Job, SlurmSite
from waiting import wait_until


@pytest.fixture
def service(service: SlurmService) -> SlurmService:
    """A service that submits two or more fragments of a trainer as an array."""
    service.configure(OAKUM_SLURM_ARRAY_FROM="2")
    return service


def endless(max_nodes: int) -> TrainerSpec:
    return small_spec("elastic", epochs=100_000, max_nodes=max_nodes)


def own_jobs(site: SlurmSite) -> list[Job]:
    return [job for job in site.jobs() if job.name.startswith("oakum-")]


def arrays_of(jobs: list[Job]) -> set[str]:
    """Numbers of the arrays that the jobs are tasks of."""
    assert all("_" in job.id for job in jobs), jobs
    return {job.id.partition("_")[0] for job in jobs}


def fragments_of(job: Job, service: SlurmService) -> list[str]:
    """The fragments of the job's array, by index."""
    name = job.name.split("-", 2)[2]
    return list(json.loads((service.data_dir / "fragments" / name / "array.json").read_text())["fragments"])


def true_nodes(site: SlurmSite, service: SlurmService) -> dict[str, str]:
    """Fragment -> the node that Slurm has its task on."""
    return {
        fragments_of(job, service)[int(job.id.partition("_")[2])]: job.nodes
        for job in own_jobs(site)
        if job.state == "RUNNING"
    }


def test_a_trainer_begins_as_one_array_whose_tasks_are_known_by_the_nodes_they_got(
    slurm: SlurmSite, service: SlurmService
) -> None:
    began_at = time.time()
    blocker = slurm.submit_foreground(nodes=2, run_s=60.0)
    slurm.wait_for_state(blocker, "RUNNING")
    client = service.start()
    client.submit(endless(max_nodes=3))
    wait_for_size(client, "elastic", 3)
    jobs = own_jobs(slurm)
    assert len(jobs) == 3
    assert len(arrays_of(jobs)) == 1
    nodes = true_nodes(slurm, service)
    assert nodes_of_fragments(client) == nodes
    assert set(client.trainer("elastic").nodes) == set(nodes.values())
    before = step_of(client, "elastic")
    wait_until("it trains on", lambda: step_of(client, "elastic") > before + 10)
    assert {line.partition(" | ")[0] for line in client.logs("elastic").lines} == set(nodes.values())
    service.assert_one_at_a_time(began_at)


def test_a_foreground_job_that_takes_one_tasks_node_leaves_the_others_alone(
    slurm: SlurmSite, service: SlurmService
) -> None:
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    before = {job.id: job.nodes for job in own_jobs(slurm)}
    node = before[min(before)]
    job = slurm.submit_foreground(nodes=1, run_s=60.0, options=(f"--nodelist={node}",))
    slurm.wait_for_state(job, "RUNNING")
    wait_until(
        "the node is the job's", lambda: {n.name: n.foreground_job for n in client.nodes().nodes}[node] == job
    )
    after = {job.id: job.nodes for job in own_jobs(slurm) if job.state == "RUNNING"}
    assert {task: node for task, node in after.items() if task in before} == {
        task: at for task, at in before.items() if at != node
    }
    wait_until("the trainer has lost it", lambda: client.trainer("elastic").nodes_lost == 1)


def test_a_service_killed_as_its_array_is_handed_in_finds_every_task_again(
    slurm: SlurmSite, service: SlurmService
) -> None:
    began_at = time.time()
    client = service.start()
    client.submit(endless(max_nodes=2))
    folder = service.data_dir / "fragments"
    slurm.wait_until("the array is handed in", lambda: len(list(folder.glob("*/*_submitted.pkl"))) == 2)
    service.kill()
    client = service.start()
    assert "2 fragments adopted, 0 orphans" in wait_for_starts(client, 2)[-1]
    wait_for_size(client, "elastic", 2)
    assert len(arrays_of(own_jobs(slurm))) == 1
    assert nodes_of_fragments(client) == true_nodes(slurm, service)
    service.assert_one_at_a_time(began_at)


def test_a_trainer_that_shrinks_has_only_the_tasks_end_that_it_gives_up(
    slurm: SlurmSite, service: SlurmService
) -> None:
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    before = {job.id: job.nodes for job in own_jobs(slurm)}
    client.change("elastic", TrainerChange(max_nodes=1))
    wait_for_size(client, "elastic", 1)
    wait_until("one job is left", lambda: len(own_jobs(slurm)) == 1)
    after = {job.id: job.nodes for job in own_jobs(slurm)}
    assert after.items() <= before.items()
    assert set(client.trainer("elastic").nodes) == set(after.values())
