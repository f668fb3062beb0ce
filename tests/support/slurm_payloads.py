"""Answers of Slurm in the shape of each data parser, 21.08 to 25.11, small enough to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

RELEASES = {
    "v0.0.37": "21.08.8",
    "v0.0.38": "22.05.8",
    "v0.0.39": "23.02.7",
    "v0.0.40": "23.11.10",
    "v0.0.41": "24.05.5",
    "v0.0.42": "24.11.5",
    "v0.0.43": "25.05.4",
    "v0.0.44": "25.11.0",
}
_OLD_FLAGS = {"DRAIN": "DRAINING", "MAINT": "MAINTENANCE", "FAIL": "FAILED"}
_RECORDED = Path(__file__).parents[3] / "shared" / "data" / "slurmrestd"


def generation(parser: str) -> int:
    """38 of v0.0.38."""
    return int(parser.rpartition(".")[2])


def number(parser: str, value: int | None, *, time: bool = False) -> Any:
    """A number in the parser's shape; None: not set."""
    plain_until = 39 if time else 38
    if generation(parser) <= plain_until:
        return 0 if value is None and time else value
    return {"set": value is not None, "infinite": False, "number": value or 0}


def unlimited(parser: str) -> Any:
    """An infinite time limit."""
    return None if generation(parser) <= 38 else {"set": False, "infinite": True, "number": 0}


def node(parser: str, name: str, *states: str, **fields: Any) -> dict[str, Any]:
    """One node; base state first."""
    base, *flags = states or ("IDLE",)
    features = fields.pop("features", ["ib", "h100"])
    shape: dict[str, Any] = {
        "name": name,
        "hostname": name,
        "address": f"10.0.0.{len(name)}",
        "cpus": 2,
        "comment": "",
        "gres": "gpu:h100:4(S:0-1)",
        "gres_used": "gpu:h100:1(IDX:0)",
        "gres_drained": "N/A",
        "alloc_cpus": 1,
        "real_memory": 4000,
        "specialized_memory": 500,
        "alloc_memory": 1000,
        "active_features": ",".join(features) if generation(parser) <= 39 else features,
        "partitions": ["main", "fill"],
        "operating_system": "Linux 6.1 #1 SMP",
    }
    if generation(parser) <= 38:
        old = generation(parser) == 37
        shape |= {
            "state": base.lower(),
            "state_flags": [_OLD_FLAGS.get(flag, flag) if old else flag for flag in flags],
            "next_state_after_reboot": "invalid",
        }
    else:
        shown = ["MAINTENANCE" if flag == "MAINT" else flag for flag in flags]
        shape |= {"state": [base, *shown], "next_state_after_reboot": ["INVALID"]}
    if generation(parser) >= 40:
        shape["reservation"] = ""
    return shape | fields


def job(parser: str, number_: int, *states: str, **fields: Any) -> dict[str, Any]:
    """One job of one node; base state first. A state that comes as one word is the last one, as Slurm has it."""
    new = generation(parser)
    nodes = fields.get("nodes", "")
    shape: dict[str, Any] = {
        "job_id": number_,
        "name": "train",
        "user_name": "ada",
        "user_id": 1000,
        "partition": "main",
        "qos": "normal",
        "job_state": list(states) if new >= 40 else states[-1],
        "job_resources": _resources(new, nodes),
        "nodes": nodes,
        "node_count": number(parser, 1),
        "submit_time": number(parser, 1_700_000_000, time=True),
        "start_time": number(parser, 1_700_000_100, time=True),
        "end_time": number(parser, 1_700_003_700, time=True),
        "preempt_time": number(parser, None, time=True),
        "time_limit": number(parser, 60),
        "array_job_id": number(parser, 0),
        "array_task_id": number(parser, None),
        "array_task_string": "",
        "tres_per_node": "gres/gpu:1",
    }
    if new >= 39:
        shape["scheduled_nodes"] = ""
    return shape | fields


def reservation(parser: str, name: str, **fields: Any) -> dict[str, Any]:
    """One reservation."""
    return {
        "name": name,
        "node_list": "n[1-2]",
        "flags": ["MAINT", "IGNORE_JOBS"],
        "start_time": number(parser, 1_700_010_000, time=True),
        "end_time": number(parser, 1_700_020_000, time=True),
        "partition": "",
    } | fields


def answer(parser: str, key: str, items: Iterable[Mapping[str, Any]], **more: Any) -> bytes:
    """The whole answer."""
    meta = {"release": RELEASES[parser], "version": {"major": "1"}}
    document: dict[str, Any] = {
        key: list(items),
        "meta": {"Slurm" if generation(parser) <= 39 else "slurm": meta, "plugin": {"name": "test"}},
        "errors": [],
    }
    if generation(parser) >= 40:
        document |= {"last_update": number(parser, 1_700_000_500), "warnings": []}
    return json.dumps(document | more).encode()


def recorded(version: str, name: str) -> bytes:
    """An answer of a real slurmrestd; skips the test where there are none."""
    found = sorted(_RECORDED.glob(f"{version}/*/{name}.json"))
    if not found:
        pytest.skip(f"needs recordings: slurmrestd {version} has none in {_RECORDED}")
    return found[0].read_bytes()


def _resources(new: int, nodes: str) -> Any:
    if not nodes:
        return None if new >= 42 else {}
    if new >= 41:
        return {"nodes": {"count": 1, "list": nodes, "allocation": [{"index": 0, "name": nodes}]}}
    return {"nodes": nodes, "allocated_nodes": [{"nodename": nodes}] if new >= 38 else {"0": {"cpus": 1}}}
