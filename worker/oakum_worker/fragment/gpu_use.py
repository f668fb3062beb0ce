"""Asks nvidia-smi, where it is installed, how much of the fragment's GPUs is in use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

_QUERY = "--query-gpu=utilization.gpu,memory.used,memory.total"
_LONGEST_S = 3.0
"""For which an answer is waited for; a driver that is ill gives none."""
_MOST_FAILURES = 3
"""In a row, after which the program is not asked again."""


class GpuReader:
    """Reads the use of the GPUs that the fragment sees."""

    def __init__(self, program: str = "nvidia-smi", longest_s: float = _LONGEST_S) -> None:
        self._program = shutil.which(program)
        self._longest_s = longest_s
        self._failures = 0

    def read(self) -> dict[str, Any]:
        """The fields of `NodeUse` about GPUs, empty where there are none. Takes up to 3 s."""
        if self._program is None or self._failures == _MOST_FAILURES:
            return {}
        command = [self._program, _QUERY, "--format=csv,noheader,nounits", *_those_of(os.environ)]
        try:
            asked = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=self._longest_s,
                check=True,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            self._failures += 1
            return {}
        self._failures = 0
        return gpu_fields(asked.stdout)


def _those_of(environment: Mapping[str, str]) -> Sequence[str]:
    """The option that names the fragment's GPUs, where the scheduler has told them; else nothing, for all."""
    devices = environment.get("CUDA_VISIBLE_DEVICES", "")
    return [f"--id={devices}"] if devices else []


def gpu_fields(answer: str) -> dict[str, Any]:
    """The fields of `NodeUse` about GPUs from nvidia-smi's answer, a line for each GPU: use in percent, memory in
    use and in all in MiB. What a GPU does not tell (`[N/A]`) is left out."""
    rows = [[word.strip() for word in line.split(",")] for line in answer.splitlines() if line.count(",") == 2]
    if not rows:
        return {}
    uses, used, memory = (
        [float(word) for word in column if _is_number(word)] for column in zip(*rows, strict=True)
    )
    fields: dict[str, Any] = {"gpus": len(rows)}
    if uses:
        fields["gpu_use"] = min(1.0, sum(uses) / len(uses) / 100)
    if len(used) == len(memory) == len(rows):
        fields |= {"gpu_used_bytes": int(sum(used)) << 20, "gpu_memory_bytes": int(sum(memory)) << 20}
    return fields


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdecimal()
