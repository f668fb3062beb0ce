"""Fragments of two GPUs of one node on a real Slurm whose jobs share nodes, beside a trainer of single GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_client.rest.client import OakumClient
from oakum_service.documents.slots import node_of
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import events_of, small_spec, state_of, train_alone
from slurm_service import SlurmService, step_of, wait_for_size
from slurm_site import SlurmSite, wait_until

_NODES, _GPUS = 2, 3
_PAIRS, _SINGLE = "pairs", "single"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SlurmSite]:
    """Two nodes of three GPUs each, which jobs share."""
    site = SlurmSite.make(nodes=_NODES, gpus=_GPUS, cpus=2 * _GPUS, grace_s=60)
    yield site
    site.down()


@pytest.fixture
def service(shared: SlurmSite, tmp_path: Path) -> Iterator[SlurmService]:
    # Steps that sleep are no faster on more GPUs, which would be learnt.
    running = SlurmService(tmp_path, shared, OAKUM_SLURM_SLOTS="gpu", OAKUM_LEARN_CURVES="false")
    yield running
    running.end()


def asked_of(site: SlurmSite) -> dict[str, tuple[str, str]]:
    """Our jobs that run -> their node, and what they asked for of it."""
    shown = site.run("squeue", "--noheader", "--states=RUNNING", "--format=%i|%N|%b|%j")
    lines = (line.split("|") for line in shown.splitlines())
    return {id_: (node, gres) for id_, node, gres, name in lines if name.startswith("oakum-")}


def num_ranks(service: SlurmService) -> int:
    return sum("oakum_worker.rank.process" in process.info["cmdline"] for process in service.processes())


def _both_stand_on_each_node(site: SlurmSite, client: OakumClient, specs: list[TrainerSpec]) -> None:
    """A job has a GPU of each node until the first trainer has begun on the others."""
    keeper = site.submit_gpus(1, run_s=600.0, nodes=_NODES)
    wait_until(
        "its GPUs are seen to be taken",
        lambda: [node.foreground_job for node in client.nodes().nodes].count(keeper) == _NODES,
    )
    pairs, single = specs
    client.submit(pairs)
    wait_for_size(client, pairs.name, pairs.max_nodes)
    site.run("scancel", keeper)
    # Else a plan may clear a node of a pair for the heavier trainer.
    wait_until(
        "its GPUs are seen to be idle",
        lambda: keeper not in [node.foreground_job for node in client.nodes().nodes],
    )
    client.submit(single)
    wait_for_size(client, single.name, single.max_nodes)


def _paced(name: str, gate: Path, **fields: object) -> TrainerSpec:
    paced = {"entrypoint": "small_task:paced_task", "arguments": {"gate": str(gate), "step_s": 0.5}, "epochs": 90}
    return small_spec(name, **(paced | fields))


@pytest.mark.timeout(900)
def test_a_job_of_one_gpu_takes_a_fragment_of_two_whole_and_disturbs_nobody_beside_it(
    shared: SlurmSite, service: SlurmService, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    client = service.start()
    # No plan clears a node of the heavier one for a pair.
    heavy = _paced(_SINGLE, gate, max_nodes=2, weight=10.0)
    specs = [_paced(_PAIRS, gate, max_nodes=4, slots_per_fragment=2), heavy]
    _both_stand_on_each_node(shared, client, specs)
    before = asked_of(shared)
    assert sorted(before.values()) == [
        (node, f"gres:gpu:a100:{count}") for node in ("n001", "n002") for count in (1, 2)
    ]
    assert num_ranks(service) == 6
    singles = events_of(client, "generation.formed")
    singles = [event for event in singles if event.subject == _SINGLE]

    # The oldest job on a node is the first that Slurm takes.
    job = shared.submit_gpus(1, run_s=600.0, options=("--nodelist=n001",))
    shared.wait_for_state(job, "RUNNING")
    wait_for_size(client, _PAIRS, 2)
    left = asked_of(shared)
    gone = {id_: asked for id_, asked in before.items() if id_ not in left}
    assert list(gone.values()) == [("n001", "gres:gpu:a100:2")]
    assert left.items() <= before.items(), "nothing was started anew"
    assert {node_of(slot) for slot in client.trainer(_PAIRS).nodes} == {"n002"}
    assert (client.trainer(_PAIRS).nodes_lost, client.trainer(_SINGLE).nodes_lost) == (2, 0)
    for name in (_PAIRS, _SINGLE):
        step = step_of(client, name)
        wait_until("it trains on", lambda name=name, step=step: step_of(client, name) > step)
    # The job's node is kept free until it has begun.
    wait_until(
        "the slot left is seen", lambda: client.explain(_PAIRS).reason.endswith("only 1 more node is free.")
    )

    shared.run("scancel", job)
    wait_for_size(client, _PAIRS, 4)
    assert sorted(asked_of(shared).values()) == sorted(before.values())
    formed = [event for event in events_of(client, "generation.formed") if event.subject == _SINGLE]
    assert formed == singles, "the neighbours have formed no other generation"

    gate.touch()
    wait_until("both end", lambda: all(state_of(client, name).ended for name in (_PAIRS, _SINGLE)))
    for spec in specs:
        view = client.trainer(spec.name)
        assert view.state is TrainerState.FINISHED, view.message
        assert view.loss == pytest.approx(train_alone(spec, tmp_path)["loss"], rel=1e-9)
    assert len(service.jobs()) == 5
