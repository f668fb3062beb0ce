"""What came of a run: how much of the idle GPU-time was used, and whether anybody was disturbed."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oakum_service.api.schemas.intervals import IdleTimeView
from oakum_service.documents.slots import node_of
from oakum_worker.spec import TrainerSpec
from shared_nodes.fillers import TRAINERS
from slurm_service import SlurmService
from slurm_site import SlurmSite
from soaking.records import Records

_PARTS = ("trained_node_s", "stalled_node_s", "start_up_node_s", "late_node_s", "unwanted_node_s")


@dataclass
class Outcome:
    """One condition: waits of the foreground jobs and, where trainers filled the rest, what became of them."""

    condition: str
    waits_s: list[float] = field(default_factory=list)
    """Seconds from submission to the job's first line, for each job."""
    gpu_s: dict[str, float] = field(default_factory=dict)
    """Where the GPU-seconds went of all the time from the trainers' first full size to the last job's end."""
    ends: dict[str, int] = field(default_factory=dict)
    """Cause -> how many fragments ended by it in that time."""
    steps: int = 0
    gaps: int = 0
    """Steps that a rank has left out between its first and its last."""
    ranks: int = 0
    extra_ranks: int = 0
    """Processes of ranks beyond one for each GPU of each fragment that trained."""
    loss_difference: float = 0.0
    """Largest difference of any step's loss from training alone."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with steps, samples and losses, and where `squeue` and the database disagree at the end."""

    def used_share(self, *parts: str) -> float:
        """Share of the idle GPU-time after start-up that went into these parts of `gpu_s`."""
        idle_s = self.gpu_s["all"] - self.gpu_s["foreground"] - self.gpu_s["start_up"]
        return sum(self.gpu_s[part] for part in parts) / idle_s


def spent(before: IdleTimeView, after: IdleTimeView) -> dict[str, float]:
    """What idle GPU-time has gone into between two answers of the service."""
    return {
        name.removesuffix("_node_s"): getattr(after, name) - getattr(before, name)
        for name in (*_PARTS, "idle_node_s")
    }


def ends_since(data_dir: Path, begin: float) -> dict[str, int]:
    """Cause -> number of fragments that ended by it since `begin`, by the database."""
    rows = _rows(data_dir, "SELECT cause, count(*) FROM fragments WHERE ended_at >= ? GROUP BY cause", begin)
    return {str(cause): int(number) for cause, number in rows}


def disagreements(site: SlurmSite, service: SlurmService) -> list[str]:
    """Where `squeue` and the database tell different things of our jobs; empty once they agree."""
    shown = {
        (job.id, job.nodes) for job in site.jobs() if job.name.startswith("oakum-") and job.state == "RUNNING"
    }
    live = _rows(service.data_dir, "SELECT job_id, node FROM fragments WHERE state = 'live'")
    known = {(str(job), node_of(str(node))) for job, node in live}
    return [f"squeue alone has job {job} on {node}" for job, node in sorted(shown - known)] + [
        f"the database alone has job {job} on {node}" for job, node in sorted(known - shown)
    ]


def judge_steps(outcome: Outcome, folder: Path, data_dir: Path, specs: list[TrainerSpec]) -> None:
    """Judge what the ranks have written down."""
    begun = _rows(data_dir, "SELECT node FROM fragments WHERE training_at IS NOT NULL")
    num_slots = sum(str(node).count("+") + 1 for (node,) in begun)
    for name, spec in zip(TRAINERS, specs, strict=True):
        records = Records(folder / f"records-{name}")
        outcome.steps += records.read()
        difference, problems = records.compare(spec)
        outcome.loss_difference = max(outcome.loss_difference, difference)
        outcome.problems += [f"{name}: {problem}" for problem in (*records.problems, *problems)]
        steps_of = _steps_by_rank(folder / f"records-{name}")
        outcome.ranks += len(steps_of)
        outcome.gaps += sum(max(steps) - min(steps) + 1 - len(steps) for steps in steps_of.values())
    outcome.extra_ranks = max(0, outcome.ranks - num_slots)


def _steps_by_rank(folder: Path) -> dict[str, set[int]]:
    """File of a rank that has finished a step -> the steps."""
    found: dict[str, set[int]] = {}
    for file in folder.glob("*.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines()
        steps = {told["step"] for told in map(_told, lines) if told["kind"] == "FinishedStep"}
        if steps:
            found[file.name] = steps
    return found


def _told(line: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(line)
    except ValueError:  # the last line of a rank that was killed
        return {"kind": "unfinished"}
    return told


def _rows(data_dir: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{data_dir / 'oakum.db'}?mode=ro", uri=True, timeout=30.0) as database:
        return database.execute(query, values).fetchall()


def cause_text(ends: dict[str, int]) -> str:
    """`61 preempted, 2 released`."""
    return ", ".join(f"{number} {cause}" for cause, number in Counter(ends).most_common()) or "none"
