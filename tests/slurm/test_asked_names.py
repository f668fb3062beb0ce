"""Trainers that ask a real Slurm for a QOS, features of nodes and a reservation."""

from __future__ import annotations

from pathlib import Path

from running_service import small_spec
from slurm_service import SlurmService, wait_for_size
from slurm_site import SlurmSite

_ALLOWED = {
    "OAKUM_SLURM_ALLOW_QOS": '["fill"]',
    "OAKUM_SLURM_ALLOW_CONSTRAINTS": '["ib"]',
    "OAKUM_SLURM_ALLOW_RESERVATIONS": '["ours"]',
}


def test_a_trainer_trains_on_the_nodes_that_it_asks_for_and_leaves_them_to_nobody_else(
    slurm: SlurmSite, tmp_path: Path
) -> None:
    """Three nodes are in a maintenance that the administrator allows trainers to use, two of them with InfiniBand;
    foreground jobs have all others but one."""
    slurm.run("scontrol", "update", "NodeName=n[001-002]", "AvailableFeatures=ib", "ActiveFeatures=ib")
    options = ("Nodes=n[001-003]", "Users=root", "Flags=MAINT", "StartTime=now", "Duration=60")
    slurm.run("scontrol", "create", "reservation", "ReservationName=ours", *options)
    slurm.occupy(4)
    service = SlurmService(tmp_path, slurm, **_ALLOWED)
    try:
        client = service.start()
        asked = {"qos": "fill", "constraint": "ib", "reservation": "ours"}
        fields = {"epochs": 100_000, "arguments": {"step_s": 0.5}, "max_nodes": 4}
        client.submit(small_spec("asking", slurm=asked, **fields))
        client.submit(small_spec("plain", **fields))
        assert {*wait_for_size(client, "asking", 2).nodes} == {"n001", "n002"}
        assert {*wait_for_size(client, "plain", 1).nodes}.isdisjoint({"n001", "n002", "n003"})
        told = slurm.run("squeue", "--noheader", "--partition=fill", "--format=%N %v %q %f").splitlines()
        ours = sorted(line.split() for line in told if line.startswith(("n001", "n002")))
        assert ours == [["n001", "ours", "fill", "ib"], ["n002", "ours", "fill", "ib"]]
        assert client.trainer("asking").nodes_lost == 0, "the maintenance takes nothing back"
    finally:
        service.end()
        slurm.run("scontrol", "update", "NodeName=n[001-002]", "AvailableFeatures=", "ActiveFeatures=")
