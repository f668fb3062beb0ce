"""What a data set has to offer, so that each sample is read exactly once at any number of nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeGuard

from torch.utils.data import IterableDataset


class SizedDataset(Protocol):
    """A map-style data set. With a `__getitems__(indices)` of its own, that one reads whole chunks.

    What it draws from torch's, Python's or NumPy's global generator while it reads a sample, to augment it for
    instance, follows from (seed, epoch, index). Generators of its own are its own business.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class SampleStream(Protocol):
    """A data set that is read in its own order, such as one of large files whose records follow each other.

    Each rank reads only its share of every global batch, so between two reads lie the shares of the others. Where
    opening at `start` is quick, a seek in a file, a rank reads nothing else. Where it means to read and throw away
    what comes before, ranks read everything, and more of them do not read faster. Oakum measures both and does
    what takes less time.
    """

    def __len__(self) -> int:
        """Samples of each epoch."""
        ...

    def samples(self, epoch: int, start: int) -> Iterator[Any]:
        """The samples of that epoch from number `start` on.

        Their order depends on `epoch` alone: shuffle with a generator seeded from it. What is drawn from the
        global generators while a sample is made follows from (seed, epoch, its number), as for any data set.
        """
        ...


def is_stream(dataset: object) -> TypeGuard[SampleStream]:
    """Whether the data set is read in its own order."""
    # torch gives its `IterableDataset` a `__getitem__`, one that raises.
    has_no_index = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
    return has_no_index and callable(getattr(dataset, "samples", None))


def read_samples(dataset: Any, indices: Sequence[int]) -> Any:
    """What a task's `collate` takes: the samples at `indices`, or as many from a stream's beginning."""
    if is_stream(dataset):
        return list(itertools.islice(dataset.samples(0, 0), len(indices)))
    if (read_many := getattr(dataset, "__getitems__", None)) is not None:
        return read_many(indices)
    return [dataset[index] for index in indices]
