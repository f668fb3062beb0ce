"""What a user writes: a job whose rounds train a state on blocks of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""Name -> array: a state, or statistics. Every block's statistics have the same names, shapes and types."""
ROUND = "round"
"""Name in a state of the number of finished rounds."""


class MapReduceJob(Protocol):
    """Functions of arrays alone: what they return must follow from their arguments.

    A random number has to follow from what is drawn for, such as (seed, round, example): see
    `oakum_worker.map_reduce.draws`. Statistics contain `loss`, the total over the block's examples, and
    `examples`, their number, both of shape ().
    """

    def map(self, state: Arrays, block: Any) -> Arrays:
        """The statistics of one block. `state["round"]` counts the finished rounds. The state's arrays cannot be
        written to."""
        ...

    def combine(self, left: Arrays, right: Arrays) -> Arrays:
        """The statistics of the blocks of `left`, which come first, and those of `right`. A sum in most jobs:
        `add` does that."""
        ...

    def update(self, state: Arrays, statistics: Arrays) -> Arrays:
        """The next round's values for what changes in the state, from the statistics of all of a round's
        blocks."""
        ...


@runtime_checkable
class PreparingJob(MapReduceJob, Protocol):
    """A job whose maps begin with something that does not change for many rounds, such as the activities of layers
    that are trained already: it is computed once for a block and kept, then computed again only where it is
    missing or the arrays that it depends on have changed."""

    def prepared_by(self, state: Arrays) -> Sequence[str] | None:
        """Names of the arrays of the state on which prepared blocks depend in this round. None where `map` gets
        the data set's blocks as they are."""
        ...

    def prepare(self, arrays: Arrays, block: Any) -> Any:
        """What `map` gets in place of `block`: arrays, or tuples and dicts of arrays and numbers. `arrays` has
        those that `prepared_by` named, and none of them can be written to. The result must follow from the
        arguments alone, and the block stays as it is. A result of the block's form has a row for each of the
        block's examples."""
        ...


def add(left: Arrays, right: Arrays) -> Arrays:
    """The sum of two blocks' statistics, name by name."""
    return {name: np.asarray(value + right[name]) for name, value in left.items()}
