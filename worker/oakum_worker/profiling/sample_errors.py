"""Reads and collates samples of a task. Errors name the sample that fails: "reading sample 3 of the data set
raised"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oakum_worker.data_sets import is_stream, read_samples
from oakum_worker.errors import TaskError
from oakum_worker.task import Task
from oakum_worker.task_checks import describe

_FEW = 3


def read(task: Task, indices: Sequence[int]) -> Any:
    """Read the samples at `indices`, not collated; of a stream its first `len(indices)` samples. Raises
    `TaskError`, which names the sample that cannot be read. Returns them in the form that a task's `collate`
    takes."""
    try:
        samples = read_samples(task.dataset, indices)
    except (Exception, SystemExit) as error:
        raise TaskError(f"{_blamed(task, indices)} raised {describe(error)}: correct the data set") from error
    if is_stream(task.dataset) and len(samples) < len(indices):
        raise TaskError(ended_early(task, len(samples)))
    return samples


def ended_early(task: Task, number: int) -> str:
    """Message that a stream has ended after `number` samples, which is fewer than its length says."""
    return (
        f"the data set ({type(task.dataset).__name__}) has {len(task.dataset)} samples, but its samples(0, 0) "
        f"ends after {number}: correct one of them"
    )


def _blamed(task: Task, indices: Sequence[int]) -> str:
    """Text that names the first sample that fails when it is read alone, or all samples where each can be read
    alone. To find it, every sample is read again; streams are not."""
    dataset: Any = task.dataset
    called = f"({type(dataset).__name__}, {len(dataset):,} samples)"
    for index in indices if not is_stream(dataset) else ():
        try:
            read_samples(dataset, [index])
        except (Exception, SystemExit):
            return f"reading sample {index} of the data set {called}"
    return f"reading the samples {some_indices(indices)} of the data set {called} at once"


def collate(task: Task, samples: Any, which: str) -> Any:
    """The batch that the task's `collate` makes of the samples. Raises `TaskError` where that fails; its message
    calls the samples `which`."""
    try:
        return task.collate(samples)
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"collating {which} raised {describe(error)}: give samples of one shape, or the task a `collate` of "
            "its own that pads them"
        ) from error


def some_indices(indices: Sequence[int]) -> str:
    """Text with the first three indices, and how many more there are."""
    some = ", ".join(map(str, indices[:_FEW]))
    return some if len(indices) <= _FEW else f"{some} and {len(indices) - _FEW} more"
