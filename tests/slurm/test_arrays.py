"""Two trainers on a real Slurm, the fragments of one as a job array, whose nodes Slurm chooses."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import nodes_of_fragments, small_spec, state_of, train_alone
from slurm_service import SlurmService, foreground_jobs, step_of, wait_for_size, wait_for_starts
from slurm_site import Job, SlurmSite, wait_until
from waiting import wait_until as wait_closely


@pytest.fixture
def service(service: SlurmService) -> SlurmService:
    """A service that submits two or more fragments of a trainer as an array."""
    service.configure(OAKUM_SLURM_ARRAY_FROM="2")
    return service


def arrays_of(jobs: list[Job]) -> set[str]:
    """Numbers of the arrays that the jobs are tasks of."""
    assert all("_" in job.id for job in jobs), jobs
    return {job.id.partition("_")[0] for job in jobs}


def fragments_of(job: Job, service: SlurmService) -> list[str]:
    """The fragments of the job's array, by index."""
    name = job.name.split("-", 2)[2]
    return list(json.loads((service.data_dir / "fragments" / name / "array.json").read_text())["fragments"])


def true_nodes(service: SlurmService) -> dict[str, str]:
    """Fragment -> the node that Slurm has its task on."""
    return {
        fragments_of(job, service)[int(job.id.partition("_")[2])]: job.nodes
        for job in service.own_jobs()
        if job.state == "RUNNING"
    }


def tasks_of(service: SlurmService) -> dict[str, str]:
    """Array task that runs -> its node."""
    return {job.id: job.nodes for job in service.own_jobs() if job.state == "RUNNING" and "_" in job.id}


@pytest.mark.timeout(1200)
def test_two_trainers_fill_the_cluster_one_as_an_array_give_way_and_end_as_if_alone(
    slurm: SlurmSite, service: SlurmService, tmp_path: Path
) -> None:
    """The array's three tasks live through a killed service, lose one to a foreground job and one to a smaller
    size; the last of them ends beside the other trainer's one fragment."""
    began_at = time.time()
    client, gate = service.start(), tmp_path / "gate"
    paced = {"entrypoint": "small_task:paced_task", "arguments": {"gate": str(gate), "step_s": 1.0}, "epochs": 60}
    first, second = (
        small_spec(name, seed=seed, max_nodes=nodes, **paced)
        for name, seed, nodes in (("first", 3, 3), ("second", 4, 1))
    )
    jobs = [slurm.occupy(4)]
    wait_until(
        "its nodes are seen to be taken", lambda: list(foreground_jobs(client).values()).count(jobs[0]) == 4
    )
    client.submit(first)
    client = _the_service_is_killed_as_it_hands_the_array_in(service)
    _its_tasks_are_known_by_the_nodes_they_got(service, client)
    client.submit(second)
    wait_for_size(client, "second", 1)
    assert set(slurm.node_states().values()) == {"allocated"}, "the trainers fill the cluster"
    jobs.append(_a_job_takes_one_tasks_node(slurm, service, client))
    _the_trainer_shrinks(service, client)
    gate.touch()
    _both_end_as_if_alone(client, [first, second], tmp_path)
    wait_until("no job of ours is left", lambda: not service.running())
    service.assert_one_at_a_time(began_at)
    assert client.cluster().foreground_jobs_started == len(jobs)


def _the_service_is_killed_as_it_hands_the_array_in(service: SlurmService) -> OakumClient:
    """A service that did not live to hear which jobs it has submitted adopts every task when it starts again."""
    folder = service.data_dir / "fragments"
    wait_closely("the array is handed in", lambda: len(list(folder.glob("*/*_submitted.pkl"))) == 3)
    service.kill()
    client = service.start()
    assert "3 fragments adopted, 0 orphans" in wait_for_starts(client, 2)[-1]
    return client


def _its_tasks_are_known_by_the_nodes_they_got(service: SlurmService, client: OakumClient) -> None:
    """Many fragments of one trainer are one job array; Slurm chooses which task gets which node."""
    wait_for_size(client, "first", 3)
    jobs = service.own_jobs()
    assert len(jobs) == 3
    assert len(arrays_of(jobs)) == 1
    nodes = true_nodes(service)
    assert nodes_of_fragments(client) == nodes
    assert set(client.trainer("first").nodes) == set(nodes.values())
    _trains_on(client, "after the array has begun")
    wait_until(
        "each task has written to its log",
        lambda: {line.partition(" | ")[0] for line in client.logs("first").lines} == set(nodes.values()),
    )


def _a_job_takes_one_tasks_node(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> str:
    """A foreground job that takes one task's node leaves the others alone. Returns its id."""
    before = tasks_of(service)
    taken = before[min(before)]
    job = slurm.occupy(1, f"--nodelist={taken}")
    wait_until("the node is the job's", lambda: foreground_jobs(client)[taken] == job)
    wait_until("the trainer has lost it", lambda: client.trainer("first").nodes_lost == 1)
    assert tasks_of(service) == {task: node for task, node in before.items() if node != taken}
    wait_until("the trainer is on two nodes", lambda: len(client.trainer("first").nodes) == 2)
    _trains_on(client, "without the node that a job has taken")
    return job


def _the_trainer_shrinks(service: SlurmService, client: OakumClient) -> None:
    """Of a trainer that shrinks, only the tasks end that it gives up."""
    before = tasks_of(service)
    assert len(before) == 2
    client.change("first", TrainerChange(max_nodes=1))
    wait_for_size(client, "first", 1)
    wait_until("one task is left", lambda: sum("_" in job.id for job in service.own_jobs()) == 1)
    after = tasks_of(service)
    assert after.items() <= before.items()
    assert set(client.trainer("first").nodes) == set(after.values())


def _both_end_as_if_alone(client: OakumClient, specs: list[TrainerSpec], folder: Path) -> None:
    """Both trainers end, and with the same loss as on one machine without disturbances."""
    wait_until("both end", lambda: all(state_of(client, spec.name).ended for spec in specs))
    for spec in specs:
        view = client.trainer(spec.name)
        assert view.state is TrainerState.FINISHED, view.message
        assert view.loss == pytest.approx(train_alone(spec, folder)["loss"], rel=1e-9), spec.name


def _trains_on(client: OakumClient, when: str) -> None:
    before = step_of(client, "first")
    wait_until(f"it trains on {when}", lambda: step_of(client, "first") > before + 3)
