"""Measures on a machine with one GPU, in less than nine minutes, what a machine without one cannot tell.

    python bench/gpu.py                                # all parts
    python bench/gpu.py --only steps --only start --json gpu.json
    python bench/gpu.py --cpu                          # each part, tiny, on the CPU: tries the script itself

Each part is a process of its own with a time limit. Where one fails or takes longer, what it has found so far
counts, the reason is printed, and the next one begins. Several ranks share the GPU by gloo, since NCCL wants a GPU
for each. Without a GPU the exit status is 2, and 1 where a part has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oakum_client.cli import output

_BENCH = Path(__file__).resolve().parent
_ROOT = _BENCH.parent
_TESTS = [
    f"tests/unit/worker/{name}.py"
    for name in ("test_devices", "test_offload_overlap", "test_state_of_parts", "test_uncopied_rehearsal")
]
_WHOLE_S, _ENDING_S = 500.0, 20.0


class Part(StrEnum):
    """What is measured."""

    START = "start"
    GENERATIONS = "generations"
    STEPS = "steps"
    MEMORY = "memory"
    TESTS = "tests"
    RANKS = "ranks"
    LAYOUTS = "layouts"
    OFFLOAD = "offload"


_LIMITS_S = {
    Part.START: 60,
    Part.GENERATIONS: 60,
    Part.STEPS: 150,
    Part.MEMORY: 60,
    Part.TESTS: 60,
    Part.RANKS: 120,
    Part.LAYOUTS: 60,
    Part.OFFLOAD: 60,
}


@dataclass(frozen=True)
class Outcome:
    """What a part has found."""

    part: Part
    seconds: float
    reason: str = ""
    """Why it has not found all; empty where it has."""
    figures: list[Any] = field(default_factory=list)


def main(
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts alone; may be repeated.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Run each part, tiny, on the CPU.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Measure steps, starts, generations and memory on this machine's GPU, and print what was found.

    Example: python bench/gpu.py --only steps --only memory --json gpu.json
    """
    if not cpu and (missing := _missing()):
        print(f"{missing}: run this on a machine with a GPU, or with --cpu to try the script", file=sys.stderr)
        raise typer.Exit(2)
    progress, outcomes, began_s = Console(stderr=True), list[Outcome](), time.monotonic()
    for part in only or Part:
        left_s = _WHOLE_S - (time.monotonic() - began_s)
        progress.print(f"{part}: at most {min(_LIMITS_S[part], left_s):.0f} s")
        outcomes.append(run(part, min(_LIMITS_S[part], left_s), cpu=cpu))
        if json_file is not None:
            json_file.write_text(json.dumps([asdict(outcome) for outcome in outcomes]), encoding="utf-8")
    output.console().print(table(outcomes))
    if any(outcome.reason for outcome in outcomes):
        raise typer.Exit(1)


def _missing() -> str:
    """What this machine lacks; empty where it has all."""
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    return "" if torch.cuda.is_available() else "torch sees no GPU here"


def run(part: Part, limit_s: float, *, cpu: bool) -> Outcome:
    """Run a part, for at most `limit_s` seconds."""
    began_s = time.monotonic()
    if limit_s < 1:
        return Outcome(part, 0.0, "skipped: no time is left")
    with tempfile.TemporaryDirectory() as folder:
        figures, printed = Path(folder) / "figures.json", Path(folder) / "printed"
        path = os.pathsep.join([str(_BENCH), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = os.environ | {"PYTHONPATH": path, "BENCH_ON_GPU": "" if cpu else "1"}
        with printed.open("wb") as file:
            process = subprocess.Popen(
                command(part, figures, cpu=cpu),
                cwd=_ROOT,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
                reason = "" if process.returncode == 0 else f"exit status {process.returncode}"
            except subprocess.TimeoutExpired:
                reason = f"not ended within {limit_s:.0f} s"
            finally:
                _end(process)
        text = printed.read_text(encoding="utf-8", errors="replace")
        found = [json.loads(figures.read_text())] if figures.exists() else _documents(text)
        if reason:
            last = [line.strip() for line in text.splitlines() if line.strip()][-3:]
            reason = f"{reason}: {' | '.join(last)[-400:]}"
        elif part is Part.TESTS:
            found = text.splitlines()[-1:]
    return Outcome(part, time.monotonic() - began_s, reason, found)


def command(part: Part, figures: Path, *, cpu: bool) -> Sequence[str]:
    """The command that runs a part, which may write its figures to the file `figures`."""
    python = sys.executable
    if part is Part.TESTS:
        only = "cpu" if cpu else "cuda or gpu or CUDA"
        return [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "0", "-k", only, *_TESTS]
    if part is Part.LAYOUTS:
        sizes = ["--workers", "2" if cpu else "4", "--forward-ms", "1" if cpu else "5", "--steps", "1"]
        return [python, "bench/pipeline.py", "--only", "layouts", *sizes, "--json", str(figures)]
    if part is Part.OFFLOAD:
        sizes = ["--millions", "1", "--rounds", "1"] if cpu else ["--millions", "100", "300", "--rounds", "3"]
        return [python, "bench/offload.py", *sizes, "--json", str(figures)]
    return [python, "-m", f"on_gpus.{part}", "cpu" if cpu else "cuda", "tiny" if cpu else "full"]


def _documents(text: str) -> list[Any]:
    """The lines of a process's output that are JSON documents."""
    found = []
    for line in text.splitlines():
        if line.startswith(("{", "[")):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the part's process, which may end what it has started, and then all in its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(outcomes: list[Outcome]) -> Table:
    """The outcomes as a table."""
    made = Table("part", "seconds", "found")
    for outcome in outcomes:
        lines = [json.dumps(_rounded(figure)) for figure in outcome.figures]
        told = [outcome.reason] if outcome.reason else []
        made.add_row(outcome.part, f"{outcome.seconds:.0f}", "\n".join([*told, *lines]))
    return made


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    typer.run(main)
