"""Runs the steady-state comparison: our steps and DistributedDataParallel's in turn, in the same processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from peers.contestants import PEERS


@dataclass(frozen=True)
class Steady:
    """Seconds of steps of one model on one number of ranks."""

    model: str
    ranks: int
    ours_s: float
    theirs_s: float
    """Median step."""
    ratios: list[float]
    """Of each round's median steps, theirs / ours: above 1, ours is faster."""


@dataclass(frozen=True)
class Agreement:
    """Cost of summing three additional numbers together with the gradients, by which ranks agree on a switch."""

    ranks: int
    tail_s: float
    """To write and read them."""
    longer_s: float
    """To sum them with a bucket of 1 MB: paired difference."""
    own_collective_s: float
    """For comparison: a collective for them alone."""


def compare_steps(model: str, compute_s: float, ranks: int, rounds: int, steps: int) -> Steady:
    """Alternate blocks of steps."""
    measured = json.loads(_in_ranks(ranks, "steps", model, str(compute_s), str(rounds), str(steps)))
    medians = [{who: statistics.median(seconds) for who, seconds in block.items()} for block in measured]
    return Steady(
        model=model,
        ranks=ranks,
        ours_s=statistics.median(block["ours"] for block in medians),
        theirs_s=statistics.median(block["theirs"] for block in medians),
        ratios=[block["theirs"] / block["ours"] for block in medians],
    )


def price_agreement(ranks: int, rounds: int) -> Agreement:
    """Measure what the agreement on changes of membership costs in each step."""
    return Agreement(ranks=ranks, **json.loads(_in_ranks(ranks, "agreement", str(rounds))))


def _in_ranks(ranks: int, *arguments: str) -> str:
    """Run the steady benchmark in new processes; returns what rank 0 printed."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(PEERS / "steady_rank.py"),
                    str(rank),
                    str(ranks),
                    f"{folder}/meet",
                    *arguments,
                ],
                stdout=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            printed = [process.communicate(timeout=600)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    return printed[0]
