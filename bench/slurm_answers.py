"""Generates Slurm's answers for a cluster of any size, as long as those of a real Slurm.

Sizes follow recorded answers, indented as Slurm writes them: 3 KB for a node, 9 KB for a pending job and 21 KB for
a running job on a node of 32 cores. Nearly all of it is not read by Oakum: numbers in three parts, flags, and a
line for each core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOW = 1_762_942_475
CORES = 32
"""Cores of one socket; a node has two sockets."""
_MODERN_NUMBERS = 36
_PLAIN_NUMBERS = 75
_STRINGS = 56
Document = dict[str, Any]


@dataclass(frozen=True)
class ClusterSize:
    """Numbers of nodes and jobs."""

    nodes: int
    jobs: int
    turn: int = 0
    """Number of the reading; in each new turn, one job in a hundred has moved to another node."""

    @property
    def running(self) -> int:
        """Number of running jobs: one-node jobs on 7 of 10 nodes. All other jobs are pending."""
        return min(self.jobs, self.nodes * 7 // 10)

    def node_of(self, job: int) -> int:
        """Index of the node of a running job."""
        return job + self.running if self.turn and job % 100 == 0 else job

    def taken(self) -> set[int]:
        """The nodes that jobs run on."""
        return {self.node_of(job) for job in range(self.running)}


def node_name(index: int) -> str:
    """Name of a node: n00001, ..."""
    return f"n{index + 1:05}"


def write_answers(folder: Path, size: ClusterSize, kind: str) -> int:
    """Write commands into `folder` that answer as a Slurm of the given kind; returns the answers' bytes."""
    write = {"25.11": _write_modern, "22.05": _write_plain, "text": _write_text}[kind]
    files = write(folder, size)
    release = {"25.11": "25.11.0", "22.05": "22.05.8", "text": "20.11.9"}[kind]
    version = f'[ "$1" = --version ] && {{ echo "slurm {release}"; exit; }}\n'
    config = f'[ "$2" = config ] && {{ echo "SLURM_VERSION = {release}"; exit; }}\n'
    _script(
        folder / "scontrol",
        version
        + config
        + f'case "$*" in *reservations*) exec cat {files["reservations"]};; esac\nexec cat {files["nodes"]}',
    )
    _script(folder / "sinfo", f"exec cat {files['nodes']}")
    mark = "for last; do :; done; mark=${last##*|}\n"
    text = f'{mark}exec sed "s/MARK$/$mark/" {files["jobs"]}'
    _script(folder / "squeue", text if kind == "text" else f"exec cat {files['jobs']}")
    return files["nodes"].stat().st_size + files["jobs"].stat().st_size


def _write_modern(folder: Path, size: ClusterSize) -> dict[str, Path]:
    return _write_json(folder, size, _modern_node, _modern_job)


def _write_plain(folder: Path, size: ClusterSize) -> dict[str, Path]:
    files = _write_json(folder, size, _plain_node, _plain_job)
    files["reservations"].write_text("No reservations in the system\n")
    return files


def _write_json(
    folder: Path,
    size: ClusterSize,
    node: Callable[[int, bool], Document],
    job: Callable[[int, int | None], Document],
) -> dict[str, Path]:
    taken = size.taken()
    jobs = (job(index, size.node_of(index) if index < size.running else None) for index in range(size.jobs))
    return {
        "nodes": _dump(folder / "nodes", "nodes", (node(index, index in taken) for index in range(size.nodes))),
        "jobs": _dump(folder / "jobs", "jobs", jobs),
        "reservations": _dump(folder / "reservations", "reservations", iter(())),
    }


def _dump(path: Path, key: str, items: Iterator[Document]) -> Path:
    """Write indented JSON item by item: all items at once would take too much of the memory that is measured."""
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{\n  "{key}": [\n')
        for index, item in enumerate(items):
            file.write(("    ,\n" if index else "") + _indented(item) + "\n")
        file.write('  ],\n  "last_update": {"set": true, "infinite": false, "number": 1762942475},\n')
        file.write('  "meta": {"slurm": {"release": "25.11.0"}},\n  "errors": [],\n  "warnings": []\n}\n')
    return path


def _indented(item: Document) -> str:
    return "    " + json.dumps(item, indent=2).replace("\n", "\n    ")


def _number(value: int | None) -> Document:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _base_state(index: int, taken: bool) -> list[str]:
    if taken:
        return ["ALLOCATED"]
    return ["IDLE", "DRAIN"] if index % 20 == 0 else ["IDLE"]


def _modern_node(index: int, taken: bool) -> Document:
    return {
        "architecture": "x86_64",
        **{f"time_{number}": _number(NOW) for number in range(9)},
        **{f"text_about_something_{number}": "" for number in range(25)},
        **{f"count_{number}": 32 for number in range(14)},
        "active_features": ["ib", "h100"],
        "gres": "gpu:h100:4(S:0-1)",
        "name": node_name(index),
        "address": node_name(index),
        "hostname": node_name(index),
        "state": _base_state(index, taken),
        "operating_system": "Linux 6.12.43+deb13-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.12.43-1 (2025-08-27)",
        "partitions": ["main", "fill"],
        "reservation": "",
        "version": "25.11.0",
    }


def _plain_node(index: int, taken: bool) -> Document:
    base, *flags = _base_state(index, taken)
    return {
        **{f"time_{number}": NOW for number in range(9)},
        **{f"text_about_something_{number}": "" for number in range(20)},
        **{f"count_{number}": 32 for number in range(14)},
        "active_features": "ib,h100",
        "gres": "gpu:h100:4(S:0-1)",
        "name": node_name(index),
        "address": node_name(index),
        "hostname": node_name(index),
        "state": base.lower(),
        "state_flags": flags,
        "operating_system": "Linux 6.12.43+deb13-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.12.43-1 (2025-08-27)",
        "partitions": ["main", "fill"],
    }


def _modern_job(index: int, node: int | None) -> Document:
    running = node is not None
    return {
        **{f"number_of_something_{number}": _number(index) for number in range(_MODERN_NUMBERS)},
        **{f"text_about_something_{number}": "" for number in range(_STRINGS)},
        "flags": ["EXACT_TASK_COUNT_REQUESTED", "JOB_WAS_RUNNING", "USING_DEFAULT_QOS"],
        "array_job_id": _number(0),
        "array_task_id": _number(None),
        "end_time": _number(NOW + 3600),
        "job_id": index + 1,
        "job_resources": _cores(node) if node is not None else None,
        "job_state": ["RUNNING" if running else "PENDING"],
        "name": "wrap",
        "nodes": node_name(node) if node is not None else "",
        "node_count": _number(1 if running else 1 + index % 64),
        "partition": "main",
        "preempt_time": _number(0),
        "qos": "normal",
        "scheduled_nodes": "",
        "start_time": _number(NOW - 60 if running else NOW + 7200),
        "submit_time": _number(NOW - 7200),
        "time_limit": _number(120),
        "user_name": f"user{index % 400}",
    }


def _cores(node: int) -> Document:
    core = [{"index": core, "status": ["UNALLOCATED"]} for core in range(CORES)]
    sockets = [{"index": socket, "cores": core} for socket in range(2)]
    allocation = [{"index": 0, "name": node_name(node), "cpus": {"count": 1, "used": 0}, "sockets": sockets}]
    return {"select_type": ["CORE"], "nodes": {"count": 1, "list": node_name(node), "allocation": allocation}}


def _plain_job(index: int, node: int | None) -> Document:
    running = node is not None
    cores = {str(core): "allocated" for core in range(CORES)}
    allocated = [{"sockets": {"0": {"cores": cores}, "1": {"cores": cores}}, "nodename": node}]
    return {
        **{f"number_of_something_{number}": index for number in range(_PLAIN_NUMBERS)},
        **{f"text_about_something_{number}": "" for number in range(_STRINGS)},
        "array_job_id": 0,
        "array_task_id": None,
        "end_time": NOW + 3600,
        "job_id": index + 1,
        "job_resources": {"nodes": node, "allocated_nodes": allocated} if running else {},
        "job_state": "RUNNING" if running else "PENDING",
        "name": "wrap",
        "nodes": node_name(node) if node is not None else "",
        "node_count": 1 if running else 1 + index % 64,
        "partition": "main",
        "preempt_time": 0,
        "qos": "normal",
        "start_time": NOW - 60 if running else NOW + 7200,
        "submit_time": NOW - 7200,
        "time_limit": 120,
        "user_name": f"user{index % 400}",
    }


def _write_text(folder: Path, size: ClusterSize) -> dict[str, Path]:
    taken = size.taken()
    files = {name: folder / name for name in ("nodes", "jobs", "reservations")}
    files["nodes"].write_text("".join(_node_line(index, index in taken) for index in range(size.nodes)))
    lines = (_job_line(index, size.node_of(index) if index < size.running else None) for index in range(size.jobs))
    files["jobs"].write_text("".join(lines))
    files["reservations"].write_text("No reservations in the system\n")
    return files


def _node_line(index: int, taken: bool) -> str:
    name, state = node_name(index), "+".join(_base_state(index, taken))
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=16 CPUAlloc=32 CPUEfctv=32 CPUTot=32 CPULoad=4.22 "
        f"AvailableFeatures=ib,h100 ActiveFeatures=ib,h100 Gres=gpu:h100:4(S:0-1) NodeAddr={name} "
        f"NodeHostName={name} Port=6818 Version=22.05.8 OS=Linux 6.12.43 #1 SMP PREEMPT_DYNAMIC RealMemory=524288 "
        f"AllocMem=0 FreeMem=803 Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
        f"MCS_label=N/A Partitions=main,fill BootTime={NOW} SlurmdStartTime={NOW} LastBusyTime={NOW} "
        "CfgTRES=cpu=32,mem=512G,billing=32 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0\n"
    )


def _job_line(index: int, node: int | None) -> str:
    if node is not None:
        where, times = f"RUNNING|normal|{node_name(node)}|(null)|1", f"{NOW - 7200}|{NOW - 60}|{NOW + 3600}"
        why = "None"
    else:
        where, times = f"PENDING|normal||(null)|{1 + index % 64}", f"{NOW - 7200}|{NOW + 7200}|{NOW + 9000}"
        why = "Priority"
    return f"{index + 1}|{index + 1}|N/A|user{index % 400}|main|{where}|{times}|N/A|{why}|wrap|MARK\n"


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
