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
    """Steps of one model on so many ranks."""

    model: str
    ranks: int
    ours_s: float
    theirs_s: float
    """Median step."""
    ratios: list[float]
    """Of each round's median steps, theirs / ours: above 1, ours is faster."""


@dataclass(frozen=True)
class Agreement:
    """What it costs that three numbers ride on the gradients."""

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
    """What the word that membership changes costs at each step."""
    return Agreement(ranks=ranks, **json.loads(_in_ranks(ranks, "agreement", str(rounds))))


def _in_ranks(ranks: int, *arguments: str) -> str:
    """What rank 0 of a new group printed."""
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
