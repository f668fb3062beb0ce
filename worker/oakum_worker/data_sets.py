"""What a data set has to offer, so that each sample is read exactly once at any number of nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeGuard

from torch.utils.data import IterableDataset


class SizedDataset(Protocol):
    """A map-style data set. Where it has `__getitems__(indices)`, that method reads several samples at once.

    Random numbers that the data set draws from torch's, Python's or NumPy's global generator while it reads a
    sample, for augmentation for instance, follow from (seed, epoch, index). Numbers from a generator of its own do
    not: a data set that needs a generator gets one for each sample from `oakum_worker.generators`.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class SampleStream(Protocol):
    """A data set that is read in its own order, such as one of large files whose records follow each other.

    Each rank needs only its share of every global batch; the other ranks' shares lie between two of its shares.
    Where opening the stream at `start` is quick, such as a seek in a file, a rank opens it anew for each share.
    Where opening means reading all earlier samples, a rank reads on through the other ranks' shares, and more
    ranks do not read faster. Oakum measures both and does what takes less time.
    """

    def __len__(self) -> int:
        """Samples of each epoch."""
        ...

    def samples(self, epoch: int, start: int) -> Iterator[Any]:
        """The samples of the epoch from number `start` on.

        Their order has to depend on `epoch` alone: shuffle with a generator seeded from `epoch`. Random numbers
        drawn from the global generators while a sample is made follow from (seed, epoch, sample's number).
        """
        ...


def is_stream(dataset: object) -> TypeGuard[SampleStream]:
    """Whether the data set is a `SampleStream`, which is read in its own order, and not a map-style one."""
    # torch gives its `IterableDataset` a `__getitem__`, one that raises.
    has_no_index = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
    return has_no_index and callable(getattr(dataset, "samples", None))


def read_samples(dataset: Any, indices: Sequence[int]) -> Any:
    """The samples at `indices`, in the form that a task's `collate` takes; of a stream, its first `len(indices)`
    samples, whatever `indices` are."""
    if is_stream(dataset):
        return list(itertools.islice(dataset.samples(0, 0), len(indices)))
    if (read_many := getattr(dataset, "__getitems__", None)) is not None:
        return read_many(indices)
    return [dataset[index] for index in indices]
