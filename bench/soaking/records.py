"""Reads what the recording task's ranks have written, and compares it with undisturbed training."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task

_TOLERANCE = 1e-9


class Records:
    """Follows the records in a folder; each file is read once, however often it is asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._newest: dict[int, int] = {}
        self._losses: dict[int, float] = {}
        self._samples: dict[int, list[int]] = {}
        self.problems: list[str] = []
        self.highest = -1
        """The highest step that any rank has finished."""
        self.by_size: Counter[int] = Counter()
        """World size -> steps finished at it by any of its ranks."""

    def read(self) -> int:
        """Read new records; returns the number of steps that have been finished."""
        for file in sorted(self._folder.glob("*.jsonl")):
            with file.open("rb") as log:
                log.seek(self._offsets.get(file, 0))
                text = log.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(complete)
            for line in complete.splitlines():
                self._take(json.loads(line))
        return self.highest + 1

    def has_trained(self, pid: int) -> bool:
        """Whether the process has finished a step."""
        return pid in self._newest

    def _take(self, record: dict[str, Any]) -> None:
        if record["kind"] != "FinishedStep":
            return
        step, pid = record["step"], record["pid"]
        newest = self._newest.get(pid)
        if newest is not None and step <= newest:
            self.problems.append(f"process {pid} finished step {step} after step {newest}: it went back")
        self._newest[pid] = step
        known = self._losses.setdefault(step, record["loss"])
        if abs(known - record["loss"]) > _TOLERANCE:
            self.problems.append(f"step {step}: ranks disagree on its loss, {known!r} and {record['loss']!r}")
        if self._samples.setdefault(step, record["samples"]) != record["samples"]:
            self.problems.append(f"step {step}: it was taken on different samples")
        if step > self.highest:
            self.by_size[record["world_size"]] += 1
            self.highest = step

    def compare(self, spec: TrainerSpec) -> tuple[float, list[str]]:
        """Train alone for as many steps; returns the largest difference of a loss, and texts about what is
        wrong."""
        problems = [f"step {step} was never finished" for step in range(self.highest) if step not in self._losses]
        torch.set_num_threads(spec.threads_per_rank)
        loop = TrainingLoop(load_task(spec), spec)
        largest = 0.0
        visited: list[int] = []
        for step in range(self.highest + 1):
            if loop.progress.epoch * len(loop.task.dataset) == loop.progress.samples:
                visited.clear()
            loss = loop.step().loss
            largest = max(largest, abs(loss - self._losses.get(step, loss)))
            visited += self._samples.get(step, [])
            if len(visited) != len(set(visited)):
                problems.append(f"step {step} repeats samples of its epoch")
                visited.clear()
        if largest > _TOLERANCE:
            problems.append(f"a loss differs by {largest:.3g} from that of training alone")
        return largest, problems
