"""The idle log of single GPUs that `oakum replay slurm` makes of Slurm's accounting."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from cells import each
from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.accounting_log import read_accounting
from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.tres import Tres, read_tres
from oakum_service.schedulers.slurm.slot_sweep import Capacity, spread
from oakum_service.schedulers.slurm.slots import SlotShare
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog

SINCE, UNTIL = 1_000_000, 1_000_100
WHOLE_DAY = [(0, 100)]
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=8 CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.01 Gres={gres} "
    "NodeAddr={name} NodeHostName={name} Version=23.02.6 OS=Linux RealMemory=64000 AllocMem=0 State={state} "
    "Partitions={partitions} CfgTRES=cpu=16,mem=64000M,billing=16,gres/gpu=4,gres/gpu:a100=4"
)
A100 = "gpu:a100:4(S:0-1)"
CONFIG = "SLURM_VERSION = 23.02.6\nAccountingStorageTRES = {}\n"
TRACKED = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpu:a100"


def node(name: str, gres: str = A100, partitions: str = "main,fill", state: str = "IDLE") -> str:
    """A line of `scontrol show nodes`: 16 cores and 64,000 MB, so 4 cores and 16,000 MB for each of 4 GPUs."""
    return NODE.format(name=name, gres=gres, partitions=partitions, state=state)


def job(nodes: str, begin: int, end: int | str, tres: str, asked: str = "") -> str:
    """A line of `sacct`; times count from `SINCE`."""
    ended = end if isinstance(end, str) else SINCE + end
    return f"{nodes}|{SINCE + begin}|{ended}|{tres}|{asked}"


class Slurm:
    """A folder with Slurm's commands, which answer what they are given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def says(
        self,
        nodes: list[str],
        jobs: list[str],
        events: str = "",
        partitions: str = "PartitionName=main OverSubscribe=NO\nPartitionName=fill OverSubscribe=NO\n",
        tracked: str = TRACKED,
    ) -> HoleLog:
        """The log that is read where Slurm answers this."""
        names = [line.split()[0].partition("=")[2] for line in nodes]
        answers = {
            "sinfo": "".join(f"{name}\n" for name in names),
            "sacct": "".join(f"{line}\n" for line in jobs),
            "sacctmgr": events,
            "nodes": "".join(f"{line}\n" for line in nodes),
            "partition": partitions,
            "config": CONFIG.format(tracked),
        }
        for name, answer in answers.items():
            (self.folder / f"{name}.txt").write_text(answer, encoding="utf-8")
        for name in ("sinfo", "sacct", "sacctmgr"):
            self._write(name, f"cat {self.folder}/{name}.txt\n")
        self._write("scontrol", f'for last; do :; done\ncat {self.folder}/"$last".txt\n')
        settings = SlurmSettings(bin_dir=self.folder, partition="fill", slots="gpu")
        return read_accounting(settings, SINCE, UNTIL)

    def _write(self, name: str, body: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def idle(log: HoleLog) -> dict[str, list[tuple[int, int]]]:
    """Slot -> when it was idle."""
    spans = defaultdict(list)
    for slot, begin, end in zip(log.node.tolist(), log.start_s.tolist(), log.end_s.tolist(), strict=True):
        spans[log.nodes[slot]].append((round(begin), round(end)))
    return dict(spans)


def test_a_gpu_is_idle_while_a_fragment_for_it_would_get_cores_and_memory_too(slurm: Slurm) -> None:
    log = slurm.says(
        [node("g1")],
        [
            job("g1", 10, 30, "cpu=6,mem=3000M,node=1,gres/gpu=3,gres/gpu:a100=3"),  # leaves one GPU
            job("g1", 40, 50, "cpu=13,mem=1000M,node=1"),  # leaves three cores, of the four of a GPU
            job("g1", 50, 60, "cpu=1,mem=40000M,node=1"),  # leaves memory for one GPU
            job("g1", 70, 80, "", "cpu=8,mem=2G,gres/gpu=2"),  # told is only what it asked for
            job("g1", 90, "Unknown", "cpu=99,mem=9T,node=1,gres/gpu=9"),  # more than there is
        ],
    )
    assert idle(log) == {
        "g1:0": [(0, 40), (50, 90)],
        "g1:1": [(0, 10), (30, 40), (60, 90)],
        "g1:2": [(0, 10), (30, 40), (60, 70), (80, 90)],
        "g1:3": [(0, 10), (30, 40), (60, 70), (80, 90)],
    }
    assert log.parts is not None
    assert log.parts.slots.tolist() == [4]
    assert log.notes == (
        "read from Slurm's accounting: 5 jobs, 0 events of nodes, 1 nodes of 4 slots",
        "jobs that have more GPUs than their nodes have now: 1",
    )


def test_nodes_without_gpus_or_of_partitions_that_give_whole_nodes_are_one_slot(slurm: Slurm) -> None:
    log = slurm.says(
        [node("c1", gres="(null)"), node("g1"), node("g2", partitions="big,fill"), node("g3")],
        [
            job("c1,g[1-2]", 20, 80, "cpu=3,mem=300M,node=3"),
            job("g3", 0, 100, "cpu=16,mem=100M,node=1,gres/gpu=1"),  # --exclusive: all of the node's cores
        ],
        events=f"g1|{SINCE + 90}|Unknown|\n",
        partitions=(
            "PartitionName=main OverSubscribe=NO\nPartitionName=fill OverSubscribe=NO\n"
            "PartitionName=big OverSubscribe=EXCLUSIVE\n"
        ),
    )
    spans = idle(log)
    assert spans.pop("g1:3") == [(0, 20), (80, 90)]
    assert spans == {
        "c1:0": [(0, 20), (80, 100)],
        "g2:0": [(0, 20), (80, 100)],
        **{f"g1:{slot}": [(0, 90)] for slot in range(3)},
    }
    assert log.parts is not None
    assert dict(zip(log.parts.names, log.parts.slots.tolist(), strict=True)) == {"c1": 1, "g1": 4, "g2": 1}


def test_nodes_that_the_service_would_leave_out_are_left_out_by_name(slurm: Slurm) -> None:
    log = slurm.says(
        [node("g1"), node("g2", gres="gpu:a100:many"), node("g3", partitions="one,fill"), node("g4", state="?")],
        [],
        partitions="PartitionName=fill OverSubscribe=NO\nPartitionName=one ExclusiveUser=YES\n",
    )
    assert idle(log) == {f"g1:{slot}": WHOLE_DAY for slot in range(4)}
    assert [note.partition(" (")[0] for note in log.notes] == [
        "read from Slurm's accounting: 0 jobs, 0 events of nodes, 1 nodes of 4 slots",
        "nodes left out that cannot be read: g[2,4]",
        "nodes left out of which Slurm gives none back to another user",
        "no job has GPUs in the accounting, so all of them count as idle while cores and memory are: was gres/gpu "
        "added to AccountingStorageTRES only now?",
    ]


def test_an_accounting_that_does_not_keep_gpus_is_refused_with_what_to_change(slurm: Slurm) -> None:
    with pytest.raises(LogError, match=r"AccountingStorageTRES is 'cpu,mem', expected gres/gpu in it"):
        slurm.says([node("g1")], [], tracked="cpu,mem")
    with pytest.raises(LogError, match=r"expected gres/gpu"):
        slurm.says([node("g1"), node("g2", gres="gpu:v100:4")], [], tracked="cpu,gres/gpu:a100")
    assert slurm.says([node("g1")], [], tracked="cpu,gres/gpu:a100").num_holes == 4
    assert slurm.says([node("c1", gres="(null)")], [], tracked="cpu").parts is None


def test_jobs_of_several_nodes_have_their_gpus_spread_as_evenly_as_goes(slurm: Slurm) -> None:
    log = slurm.says(
        [node("g1"), node("g2")],
        [
            job("g[1-2]", 0, 50, "cpu=6,mem=1000M,node=2,gres/gpu=5"),
            job("g[1-2]", 50, 80, ""),
            job("gone,g2", 80, 100, "cpu=2,mem=1000M,node=2,gres/gpu=2"),
        ],
    )
    assert idle(log) == {
        "g1:0": [(0, 50), (80, 100)],
        **{f"g1:{slot}": [(80, 100)] for slot in range(1, 4)},
        "g2:0": [(0, 50), (80, 100)],
        "g2:1": [(0, 50), (80, 100)],
        "g2:2": [(80, 100)],
    }
    assert log.notes[1:] == (
        "jobs whose GPUs do not divide by their nodes, read as spread as evenly as goes: 1",
        "jobs of which it is not told what they have, read as having all of their nodes: 1",
    )


@each(
    ("gpus_of_nodes", "asked", "shares"),
    [
        ((8, 8), 16, [8, 8]),
        ((8, 4), 12, [8, 4]),
        ((4, 8, 8), 7, [3, 2, 2]),
        ((2, 2), 9, [2, 2]),
        ((None, 2), 4, [2, 2]),
        ((None, 1), 4, [3, 1]),
    ],
)
def test_gpus_are_spread(gpus_of_nodes: tuple[int | None, ...], asked: int, shares: list[int]) -> None:
    share = SlotShare("gpu:1", 1, 1)
    capacities = [None if gpus is None else Capacity(gpus, share) for gpus in gpus_of_nodes]
    assert [one.gpus for one in spread(Tres(gpus=asked), capacities)] == shares


@each(
    ("given", "expected"),
    [
        ("cpu=6,mem=3000M,node=1,gres/gpu=3,gres/gpu:a100=3", Tres(6, 3000, 3)),
        ("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu:v100=1,mem=1.50G,node=1", Tres(8, 1536, 3)),
        ("cpu=2,gres/gpu:a100_1g.5gb=1,gres/gpu=1,mem=2T", Tres(2, 2 * 1024**2, 1)),
        ("cpu=1,mem=2048K,gres/shard=4,gres/gpumem=9", Tres(1, 2, 0)),
        ("cpu=1,mem=512", Tres(1, 512, 0)),
        ("", Tres()),
    ],
)
def test_tres_are_read(given: str, expected: Tres) -> None:
    assert read_tres("AllocTRES", given) == expected


@each("given", ["cpu=many", "mem=3X", "cpu=-1", "gres/gpu=all"])
def test_tres_that_are_none_are_told(given: str) -> None:
    with pytest.raises(FieldError, match="AllocTRES is "):
        read_tres("AllocTRES", given)
