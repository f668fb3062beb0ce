"""Runs rounds of a job on Spark, for sites that have it: the extra `spark` installs pyspark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from oakum_worker.map_reduce.job import Arrays, MapReduceJob
from oakum_worker.map_reduce.preparing import Preparation, digest, preparation_of
from oakum_worker.map_reduce.sums import BlockSums, Node

Numbered = tuple[int, Any]
"""A block with its number in the round."""


class DistributedBlocks:
    """Blocks as an RDD in the memory of Spark's executors, and a second RDD with the blocks as the last job has
    prepared them. The second is replaced when another job comes, or when the arrays that the job prepares blocks
    by have changed. Spark computes lost blocks again."""

    def __init__(self, blocks: Any, num_blocks: int) -> None:
        """`blocks` is an RDD of `Numbered`."""
        self.num_blocks = num_blocks
        self._blocks = blocks
        self._prepared: Any = None
        self._made_by: tuple[MapReduceJob, bytes] | None = None

    def prepared(self, job: MapReduceJob, state: Arrays) -> Any:
        """The RDD of what the job's `map` gets in a round of this state, with the blocks' numbers. Raises
        `TaskError` where `prepared_by` names something else than arrays of the state."""
        preparation = preparation_of(job, state)
        made_by = None if preparation is None else (job, preparation.key())
        if made_by != self._made_by:
            if self._prepared is not None:
                self._prepared.unpersist()
            self._prepared = None if preparation is None else self._blocks.map(_preparing(preparation)).cache()
            self._made_by = made_by
        return self._blocks if self._prepared is None else self._prepared


def distribute(context: Any, blocks: Sequence[Any], partitions: int) -> DistributedBlocks:
    """The blocks of a round in the executors of `context`, a `pyspark.SparkContext`, in so many partitions."""
    return DistributedBlocks(context.parallelize(list(enumerate(blocks)), partitions).cache(), len(blocks))


def spark_round(job: MapReduceJob, state: Arrays, distributed: DistributedBlocks) -> Arrays:
    """The statistics of a round over the blocks of `distribute`, with the same bits as by `alone.run_round`.

    Each of Spark's tasks maps and combines the blocks of its partition; the driver completes the sum. Spark runs
    lost tasks again, and slow ones twice where `spark.speculation` is on.
    """
    num_blocks = distributed.num_blocks

    def mapped(part: Iterator[Numbered]) -> Iterator[tuple[Node, Arrays]]:
        sums = BlockSums(num_blocks, job.combine)
        for number, block in part:
            sums.add(number, job.map(state, block))
        return iter(sums.nodes.items())

    whole = BlockSums(num_blocks, job.combine)
    for node, statistics in distributed.prepared(job, state).mapPartitions(mapped).collect():
        whole.add_node(node, statistics)
    return whole.total


def _preparing(preparation: Preparation) -> Any:
    def prepared(numbered: Numbered) -> Numbered:
        number, block = numbered
        return number, pickle.loads(preparation.pickled(block, digest(block)))  # noqa: S301 - pickled just now

    return prepared
