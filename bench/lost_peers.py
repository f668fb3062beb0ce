"""Measures how soon a pipeline goes on when one of its ranks is killed while large messages are on their way.

    python bench/lost_peers.py                                 # 40 kills, about 3 minutes
    python bench/lost_peers.py --kills 100 --seed 3 --json lost_peers.json

Three virtual nodes of this machine train a pipeline of three stages that exchange 16 MB for each micro-batch.
Ranks drawn at random are killed by SIGKILL at random moments. The time runs from the kill until the generation
without the lost rank has formed. Exits with status 1 if one does not form within two minutes.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oakum_client.cli import output
from oakum_worker.spec import TrainerSpec
from peers.contestants import wait_until
from soaking.site import Site

_TRAINER = "wide"
_NODES = 3
_WIDTH, _MICRO_BATCH, _GLOBAL_BATCH = 1 << 14, 256, 1024
_DEADLINE_S = 120.0
_SOONEST_S, _LATEST_S = 0.5, 1.5
"""Time that the pipeline trains on all nodes before the next kill."""


@dataclass(frozen=True)
class Loss:
    """A rank that was killed, and the generation that followed."""

    number: int
    formed_s: float
    """Seconds from the kill until the next generation had formed."""
    message: str
    """The service's event about that generation."""


def spec_of() -> TrainerSpec:
    """Spec of a trainer without an end: a pipeline, a stage on each node, whose messages have 16 MB."""
    return TrainerSpec.model_validate(
        {
            "name": _TRAINER,
            "entrypoint": "wide_task:task",
            "workdir": str(Path(__file__).resolve().parent / "soaking"),
            "arguments": {"width": _WIDTH},
            "global_batch": _GLOBAL_BATCH,
            "epochs": 1_000_000,
            "max_nodes": _NODES,
            "parallel": {"pipeline": {"stages": _NODES, "schedule": "1f1b", "micro_batch": _MICRO_BATCH}},
            "checkpoint": {"every_s": 3600.0, "hot_every_steps": 5},
        }
    )


class Killing:
    """Runs a service with one pipeline trainer, kills its ranks one after the other, and keeps how long each loss
    took."""

    def __init__(self, folder: Path, seed: int, console: Console) -> None:
        self._site = Site(folder, _NODES)
        self._rng = random.Random(seed)
        self._console = console
        self.losses: list[Loss] = []

    def go(self, kills: int) -> None:
        """Kill `kills` ranks. Raises `TimeoutError` when training does not go on after one."""
        self._site.start()
        try:
            self._site.client.submit(spec_of())
            for number in range(1, kills + 1):
                self._wait_for_all_nodes()
                time.sleep(self._rng.uniform(_SOONEST_S, _LATEST_S))
                loss = self._kill(number)
                self.losses.append(loss)
                self._console.print(f"{number:4d}  {loss.formed_s:.2f} s: {loss.message}", highlight=False)
        finally:
            self._site.end()

    def _wait_for_all_nodes(self) -> None:
        def reached() -> bool:
            view = self._site.client.trainer(_TRAINER)
            num_ranks = sum(found.role == "rank" for found in self._site.fragments())
            return num_ranks == len(view.nodes) == _NODES and self._newest()[0] == view.generation

        wait_until(f"it trains on {_NODES} nodes", reached, _DEADLINE_S)

    def _kill(self, number: int) -> Loss:
        ranks = sorted(
            (found for found in self._site.fragments() if found.role == "rank"), key=lambda rank: rank.node
        )
        before, _ = self._newest()
        began_s = time.monotonic()
        self._rng.choice(ranks).process.kill()
        wait_until("a generation has formed", lambda: self._newest()[0] > before, _DEADLINE_S)
        return Loss(number, time.monotonic() - began_s, self._newest()[1])

    def _newest(self) -> tuple[int, str]:
        """Number of the newest generation that has formed, and what the service's event says of it; 0 and ""
        before the first."""
        events = self._site.client.recent_events(50).events
        formed = [
            (event.data["generation"], event.message) for event in events if event.kind == "generation.formed"
        ]
        return max(formed, default=(0, ""))


def main(
    kills: Annotated[int, typer.Option(min=1, help="How many ranks are killed.")] = 40,
    seed: Annotated[int, typer.Option(help="Draws which ranks, and when.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Kill ranks of a pipeline with large messages and measure how soon it goes on.

    Example: python bench/lost_peers.py --kills 10
    """
    console = output.console()
    problem = None
    with tempfile.TemporaryDirectory(prefix="lost-peers-") as folder:
        killing = Killing(Path(folder), seed, console)
        try:
            killing.go(kills)
        except TimeoutError as error:
            problem = str(error)
    seconds = sorted(loss.formed_s for loss in killing.losses)
    if seconds:
        console.print(
            f"{len(seconds)} kills: {statistics.median(seconds):.2f} s (median), {seconds[0]:.2f} to "
            f"{seconds[-1]:.2f} s",
            highlight=False,
        )
    if json_file is not None:
        json_file.write_text(json.dumps([dataclasses.asdict(loss) for loss in killing.losses], indent=1), "utf-8")
    if problem is not None:
        console.print(f"PROBLEM: {problem}", markup=False, highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
