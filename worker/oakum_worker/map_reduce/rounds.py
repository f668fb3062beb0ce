"""A `Task` made from a MapReduce job: its state is the model, and an optimizer step is a round's update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from oakum_worker.data_sets import SizedDataset
from oakum_worker.errors import TaskError
from oakum_worker.map_reduce.job import ROUND, Arrays, MapReduceJob
from oakum_worker.map_reduce.preparing import PreparedBlocks, check_preparation, read_only
from oakum_worker.task import Task


class RoundState(nn.Module):
    """A job's state as a model: parameters of the given names, and the number of finished rounds."""

    round: torch.Tensor

    def __init__(self, state: Arrays) -> None:
        super().__init__()
        for name, array in state.items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(np.array(array))))
        self.register_buffer(ROUND, torch.zeros((), dtype=torch.int64))

    def arrays(self) -> dict[str, np.ndarray]:
        """The present state by name, with `round`: views of the live tensors, not copies."""
        return {name: tensor.detach().numpy() for name, tensor in self.state_dict().items()}

    def take(self, changed: Arrays) -> None:
        """End a round with these values. Raises `TaskError` where they do not fit the state."""
        own = dict(self.named_parameters())
        for name, value in changed.items():
            if name not in own or own[name].shape != np.shape(value):
                raise TaskError(
                    f"update returned {name!r} of shape {np.shape(value)}, and the state has "
                    f"{', '.join(f'{key} {tuple(p.shape)}' for key, p in own.items())}: return values of those"
                )
        with torch.no_grad():
            for name, value in changed.items():
                own[name].copy_(torch.from_numpy(np.array(value)))
            self.round += 1


class RoundUpdate(torch.optim.Optimizer):
    """The task's optimizer: its step ends a round, by the job's `update`."""

    def __init__(self, model: RoundState, job: MapReduceJob) -> None:
        super().__init__(model.parameters(), {"lr": 1.0})
        self._model, self._job = model, job
        self.total: Arrays | None = None
        """The statistics of all blocks of the round, once the engine has them."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the state by the statistics of the round. Raises `TaskError` where the spec does not train in
        rounds."""
        if self.total is None:
            raise TaskError("the task trains in rounds: add `parallel: {data: map-reduce}` to its spec")
        total, self.total = self.total, None
        self._model.take(self._job.update(self._model.arrays(), total))


class _Mapping:
    """The task's loss function: maps each block of a batch and returns (total loss, number of examples). `last`
    keeps the newest block's statistics for the engine."""

    def __init__(self, job: MapReduceJob) -> None:
        self._job = job
        self._prepared: Callable[[Any], Any] | None = None
        """In a round, returns what the job's `map` gets for a block."""
        self.kept = PreparedBlocks(job)
        self.last: Arrays | None = None
        """The statistics of the newest block."""

    @contextmanager
    def in_round(self, model: RoundState) -> Iterator[None]:
        """Context of a round's maps, within which the model does not change, so that prepared blocks are kept.
        Outside of it, as where a task is tried, each call prepares its blocks itself."""
        self._prepared = self.kept.of_round(_given(model))
        try:
            yield
        finally:
            self._prepared = None

    def __call__(self, model: nn.Module, blocks: Iterable[Any]) -> tuple[torch.Tensor, float]:
        assert isinstance(model, RoundState)
        state = _given(model)
        prepared = self._prepared or PreparedBlocks(self._job, most_bytes=0).of_round(state)
        loss, examples = 0.0, 0.0
        for block in blocks:
            self.last = _checked(self._job.map(state, prepared(block)))
            loss += float(self.last["loss"])
            examples += float(self.last["examples"])
        # A loss has to depend on the parameters; they get their new values from statistics, not from gradients.
        anchor = 0.0 * next(model.parameters()).flatten()[:1].sum()
        return anchor + loss, examples


def _given(model: RoundState) -> Arrays:
    """The state as `map` gets it: a map that wrote to it would change it on this rank alone."""
    return {name: read_only(array) for name, array in model.arrays().items()}


def _checked(statistics: Mapping[str, Any]) -> Arrays:
    missing = [name for name in ("loss", "examples") if name not in statistics]
    if missing:
        raise TaskError(
            f"map returned no {' and no '.join(missing)}: add the block's total loss as `loss` and its number of "
            "examples as `examples`"
        )
    return {name: np.asarray(value) for name, value in statistics.items()}


@dataclass(kw_only=True)
class RoundTask(Task):
    """A task of rounds, for `parallel: {data: map-reduce}` in the spec. `map_reduce_task` makes it."""

    job: MapReduceJob
    update: RoundUpdate
    mapping: _Mapping


def map_reduce_task(
    job: MapReduceJob,
    state: Arrays,
    blocks: SizedDataset,
    *,
    evaluate: Callable[[Arrays], Mapping[str, float]] | None = None,
    evaluate_every_epochs: int = 1,
) -> RoundTask:
    """A task whose state begins as `state` and whose samples are whole blocks of examples.

    `global_batch` of the spec is the number of blocks of a round, and so the largest number of ranks. `evaluate`
    gets the state's arrays. Raises `TaskError` where the job has only one of `prepared_by` and `prepare`.
    """
    check_preparation(job)
    model = RoundState(state)
    update, mapping = RoundUpdate(model, job), _Mapping(job)
    return RoundTask(
        model=model,
        dataset=blocks,
        loss=mapping,
        optimizer=update,
        evaluate=None if evaluate is None else lambda _: evaluate(model.arrays()),
        evaluate_every_epochs=evaluate_every_epochs,
        collate=list,
        job=job,
        update=update,
        mapping=mapping,
    )
