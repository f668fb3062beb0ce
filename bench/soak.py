"""Makes many random changes of membership, one after the other, and checks that training survives them all.

    python bench/soak.py                                  # 200 changes, about 20 minutes
    python bench/soak.py --changes 20 --seed 3 --json soak.json

Changes are grows, shrinks, foreground jobs, `kill -9` of ranks and agents, and ranks and nodes that hang, pause or
slow down; equal seeds give equal changes. After each change training has to go on, no process may go back a step,
and no node may have two fragments. At the end, losses and samples are compared with a run without changes, and
nothing may be left: no process, no port, and no more open files than at the beginning. Exits with status 1 if a
check failed.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oakum_client.cli import output
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import CheckpointSpec
from peers.contestants import wait_until
from soaking.changes import Change, Changer, draw
from soaking.records import Records
from soaking.site import Site

_TASKS = Path(__file__).resolve().parent.parent / "tests" / "support" / "tasks"
_TRAINER = "soaked"
_STEPS_ON = 3
_LOOK_S = 0.2
_MORE_FILES = {"service": 24, "controller": 4, "agent": 8, "fork server": 8, "rank": 16}
"""Role -> number of open files that a process may gain over its life, for requests or generations in progress."""


@dataclass(frozen=True)
class Outcome:
    """One change and its consequences."""

    number: int
    what: str
    went_on_s: float
    """Seconds from the change to the third new step after it."""
    steps: int
    nodes: int


@dataclass
class OpenFiles:
    """Numbers of open files of one process, early and late in its life."""

    role: str
    early: int
    late: int
    changes: int = 0
    """Number of changes between the two counts."""


@dataclass
class Soak:
    """All findings of a run."""

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    open_files: dict[int, OpenFiles] = field(default_factory=dict)
    steps: int = 0
    steps_by_size: dict[int, int] = field(default_factory=dict)
    from_checkpoint: int = 0
    """Number of times that no replica survived and training continued from a checkpoint."""
    loss_difference: float = 0.0
    elapsed_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def count_files(self, counts: dict[tuple[str, int], int]) -> None:
        """Note the processes' open files."""
        for (role, pid), count in counts.items():
            seen = self.open_files.setdefault(pid, OpenFiles(role, count, count))
            seen.late = count
            seen.changes += 1

    def longest_lived(self) -> list[OpenFiles]:
        """For each role, the process that lived through the most changes."""
        roles = {seen.role for seen in self.open_files.values()}
        by_role = {role: [seen for seen in self.open_files.values() if seen.role == role] for role in roles}
        return [max(by_role[role], key=lambda seen: seen.changes) for role in sorted(by_role)]

    def judge_files(self) -> None:
        """Add a complaint for each process whose number of open files grew too much."""
        for seen in self.open_files.values():
            if seen.late - seen.early > _MORE_FILES[seen.role]:
                self.problems.append(
                    f"a {seen.role} had {seen.early} files open, and {seen.late} after {seen.changes} changes"
                )


def spec_of(folder: Path) -> TrainerSpec:
    """Spec of an endless trainer that writes its records to `folder`."""
    return TrainerSpec(
        name=_TRAINER,
        entrypoint="recording_task:task",
        workdir=str(_TASKS),
        rehearsal=False,  # it would be recorded
        arguments={"folder": str(folder), "step_s": 0.04},
        seed=3,
        global_batch=24,
        epochs=1_000_000,
        max_nodes=4,
        checkpoint=CheckpointSpec(every_s=5.0),
    )


class SoakRun:
    """One soak from start to end."""

    def __init__(self, folder: Path, nodes: int, seed: int, deadline_s: float, console: Console) -> None:
        self._site = Site(folder, nodes)
        self._records = Records(folder / "records")
        self._spec = spec_of(folder / "records").model_copy(update={"max_nodes": nodes})
        self._alone = spec_of(folder / "alone").model_copy(update={"arguments": {"folder": str(folder / "alone")}})
        self._deadline_s = deadline_s
        self._console = console
        self.soak = Soak(seed)

    def go(self, changes: list[Change]) -> Soak:
        """Carry out the changes and check training after each."""
        began_s = time.monotonic()
        self._site.start()
        try:
            self._site.client.submit(self._spec)
            self._changer = Changer(self._site, _TRAINER)
            self._wait_for_size()
            for number, change in enumerate(changes, 1):
                self._change(number, change)
            self._finish()
        except TimeoutError as error:
            self.soak.problems.append(str(error))
            self._console.print(self._site.log_file.read_text(errors="replace")[-6000:], markup=False)
        finally:
            self._site.end()
        self.soak.elapsed_s = time.monotonic() - began_s
        return self.soak

    def _change(self, number: int, change: Change) -> None:
        before = self._records.read()
        began_s = time.monotonic()
        what = self._changer.carry_out(change)
        wait_until(f"training goes on after {what}", lambda: self._gone_on(before), self._deadline_s, _LOOK_S)
        went_on_s = time.monotonic() - began_s
        if change.settles:
            self._wait_for_size()
        nodes = len(self._site.client.trainer(_TRAINER).nodes)
        outcome = Outcome(number, what, went_on_s, self._records.read(), nodes)
        self.soak.outcomes.append(outcome)
        self._count_files()
        self._console.print(
            f"{number:4d}  {what}: on after {went_on_s:.2f} s; {outcome.steps} steps, {nodes} nodes",
            highlight=False,
        )

    def _count_files(self) -> None:
        """Count the open files of all processes except ranks that still warm up, which open most files later."""
        counts = self._site.open_files()
        ready = {key for key in counts if key[0] != "rank" or self._records.has_trained(key[1])}
        self.soak.count_files({key: counts[key] for key in ready})

    def _gone_on(self, before: int) -> bool:
        self._check()
        return self._records.read() >= before + _STEPS_ON

    def _wait_for_size(self) -> None:
        def reached() -> bool:
            self._check()
            view = self._site.client.trainer(_TRAINER)
            return len(view.nodes) == self._changer.wanted and bool(view.steps_at_size.get(len(view.nodes)))

        wait_until(f"it trains on {self._changer.wanted} nodes", reached, self._deadline_s, _LOOK_S)

    def _check(self) -> None:
        self._records.read()
        for node in self._site.crowded_nodes():
            self._complain(f"{node} has two fragments")
        while self._records.problems:
            self._complain(self._records.problems.pop(0))

    def _complain(self, problem: str) -> None:
        if problem not in self.soak.problems:
            self.soak.problems.append(problem)
            self._console.print(f"      {problem}", style="red", markup=False)

    def _finish(self) -> None:
        """Cancel the trainer, interrupt the service, and compare with a run without changes."""
        formed = [e.message for e in self._site.client.recent_events(1000).events if e.kind == "generation.formed"]
        self.soak.from_checkpoint = sum("checkpoint" in message for message in formed)
        self._site.client.cancel(_TRAINER)
        wait_until("every fragment has left", lambda: not self._site.fragments(), self._deadline_s)
        self._check()
        self.soak.problems += self._site.interrupt()
        self.soak.judge_files()
        self.soak.steps, self.soak.steps_by_size = self._records.read(), dict(self._records.by_size)
        self.soak.loss_difference, problems = self._records.compare(self._alone)
        self.soak.problems += problems


def summary(soak: Soak) -> str:
    """A table of the findings."""
    seconds = sorted(outcome.went_on_s for outcome in soak.outcomes) or [0.0]
    lines = [
        f"{len(soak.outcomes)} changes in {soak.elapsed_s:.0f} s, seed {soak.seed}; {soak.steps} steps, by nodes "
        f"{dict(sorted(soak.steps_by_size.items()))}; {soak.from_checkpoint} times from a checkpoint",
        f"training went on after {statistics.median(seconds):.2f} s (median), {seconds[-1]:.2f} s (longest)",
        f"largest difference of a loss to training alone: {soak.loss_difference:.2g}",
    ]
    lines += [
        f"open files of a {seen.role}: {seen.early}, and {seen.late} after {seen.changes} changes"
        for seen in soak.longest_lived()
    ]
    return "\n".join(lines + [f"PROBLEM: {problem}" for problem in soak.problems])


def main(
    changes: Annotated[int, typer.Option(min=1, help="How many changes.")] = 200,
    nodes: Annotated[int, typer.Option(min=2, max=16, help="Nodes of the embedded cluster.")] = 4,
    seed: Annotated[int, typer.Option(help="Repeats the same changes.")] = 1,
    settling: Annotated[
        float, typer.Option(min=0, max=1, help="Share of changes after which it may reach its size first.")
    ] = 0.5,
    deadline_s: Annotated[float, typer.Option(help="Within how long training has to go on, in seconds.")] = 60.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything here, too.")] = None,
) -> None:
    """Change a trainer's membership at random and check that training takes it.

    Example: python bench/soak.py --changes 50 --seed 3
    """
    console = output.console()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = SoakRun(Path(folder), nodes, seed, deadline_s, console).go(draw(seed, changes, settling))
    console.print(summary(soak), markup=False, highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(dataclasses.asdict(soak), indent=1), encoding="utf-8")
    sys.exit(1 if soak.problems else 0)


if __name__ == "__main__":
    typer.run(main)
