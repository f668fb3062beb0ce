"""Reads a few of a task's samples as training reads them, and reads them again to see whether they are equal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oakum_worker.data_sets import is_stream
from oakum_worker.randomness.counters import mix
from oakum_worker.rehearsal.hidden_state import HiddenState, changes
from oakum_worker.rehearsal.values import first_difference
from oakum_worker.step.reading import SampleReader
from oakum_worker.task import Task


@dataclass(frozen=True)
class Drawn:
    """Samples that were read from the first epoch."""

    indices: tuple[int, ...]
    samples: tuple[Any, ...]


class Recorded:
    """A map-style data set of samples that have been read already."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


def draw(task: Task, seed: int, number: int, most: int, until_s: float) -> Drawn:
    """Read up to `most` samples, fewer if it takes beyond `until_s` (monotonic seconds).

    Each `number` draws other samples of a map-style data set; a stream gives its first samples. Raises what the
    data set raises.
    """
    reader = SampleReader(task, seed)
    indices = _indices(task, seed, number, most)
    samples: list[Any] = []
    for position, index in enumerate(indices):
        if samples and time.monotonic() > until_s:
            break
        samples.append(_only(reader.read(0, position, [index])))
    return Drawn(tuple(indices[: len(samples)]), tuple(samples))


def read_again(task: Task, seed: int, drawn: Drawn, until_s: float) -> str | None:
    """Describe the fault if a sample differs when it is read again; None if no sample differs until `until_s`.

    A new reader reads a map-style data set in the opposite order, or a stream from another start. Raises what the
    data set raises.
    """
    hidden = HiddenState.of_data_set(task.dataset)
    before = hidden.take()
    reader, num = SampleReader(task, seed), len(drawn.indices)
    stream = is_stream(task.dataset)
    # The reader opens a stream at its second sample, and then at its beginning.
    order = [*range(1, num), 0] if stream else [*reversed(range(num))]
    for at in order:
        again = _only(reader.read(0, at, [drawn.indices[at]]))
        what = first_difference(drawn.samples[at], again)
        if what is not None:
            moved = changes(before, hidden.take())
            culprits = [change.where for change in moved if change.is_generator]
            return _describe_difference(
                type(task.dataset).__name__, drawn.indices[at], what, culprits, stream=stream
            )
        if time.monotonic() > until_s:
            break
    return None


def _describe_difference(name: str, index: int, what: str, culprits: list[str], *, stream: bool) -> str:
    why = f" ({', '.join(culprits)} has moved on)" if culprits else ""
    if stream:
        return (
            f"the data set ({name}) gives another sample {index} when its epoch is opened at another `start` "
            f"({what}){why}: let the order of samples(epoch, start) depend on epoch alone, and draw what is "
            "random in a sample from torch's, NumPy's or Python's global generator, which Oakum seeds for each "
            "sample"
        )
    return (
        f"the data set ({name}) gives another sample {index} when it is read again ({what}){why}, so every number "
        "of nodes and every restart would train on other data: draw from torch's, NumPy's or Python's global "
        "generator (torch.rand, np.random.rand, random.random), which Oakum seeds for each sample, or from the "
        "sample's own (oakum_worker.generators.sample_rng or sample_generator), and from no generator or counter "
        "that the data set keeps"
    )


def _indices(task: Task, seed: int, number: int, most: int) -> list[int]:
    size = len(task.dataset)
    most = min(most, size)
    if is_stream(task.dataset):
        return list(range(most))
    chosen: dict[int, None] = {}
    for at in range(20 * most):
        chosen.setdefault(mix(seed, number, at) % size)
        if len(chosen) == most:
            break
    return list(chosen)


def _only(samples: Any) -> Any:
    return samples[0]
