"""Runs rounds in this process alone, without a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oakum_worker.map_reduce.job import Arrays, MapReduceJob
from oakum_worker.map_reduce.preparing import PreparedBlocks
from oakum_worker.map_reduce.sums import BlockSums


def run_round(
    job: MapReduceJob, state: Arrays, blocks: Sequence[Any], kept: PreparedBlocks | None = None
) -> Arrays:
    """The statistics of a round, with the same bits as over any number of ranks. `kept` has the job's prepared
    blocks from one call to the next; without it every call prepares its blocks anew."""
    sums = BlockSums(len(blocks), job.combine)
    prepared = (kept or PreparedBlocks(job, most_bytes=0)).of_round(state)
    for number, block in enumerate(blocks):
        sums.add(number, job.map(state, prepared(block)))
    return sums.total
