"""A session as loops of other libraries see it: a loop over epochs, and in it one over a data loader.

for epoch in loop.epochs():
    for batch in loop:  # this rank's share of a global batch, in parts of the loader's batch size
        loop.backward(loss)
        if loop.is_last_part:
            loop.step()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.sampler import BatchSampler

from oakum_worker.data_sets import SizedDataset
from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import HOST
from oakum_worker.session.session import Session, session
from oakum_worker.task import Stateful


class EpochLoop:
    """Collects what a script hands to its library, and begins a session of it at the first epoch."""

    def __init__(
        self, epochs: int | None, accumulated: int, place: Callable[[Any], Any], *, how_to_weigh: str
    ) -> None:
        """A global batch has `accumulated` batches of the data loader. `place` moves a batch to the device.
        `how_to_weigh` tells a user of the library how to say what a loss is a mean over."""
        self.models: list[nn.Module] = []
        self.optimizer: Optimizer | None = None
        self.state: dict[str, Stateful] = {}
        self.seed: int | None = None
        self.exact: bool | None = None
        self.holders: dict[str, object] = {}
        """What else of the script may hold state that changes, such as callbacks, by what it is called."""
        self.how_to_weigh = how_to_weigh
        self.is_last_part = True
        """Whether the present part of this rank's share is its last, after which the step is taken."""
        self.num_epochs, self._accumulated, self._place = epochs, accumulated, place
        self._loader: DataLoader[Any] | None = None
        self._session: Session | None = None
        self._shares: Iterator[Any] = iter(())
        self._factor = 1.0
        """What the mean over the present part is multiplied by: 1 except in an epoch's last, smaller batch."""
        self._kept_share: Any = None
        """This rank's share of a step of a later epoch than the loop over batches was in."""

    def take_model(self, model: nn.Module) -> None:
        """Train this model, too."""
        if not any(model is one for one in self.models):
            self.models.append(model)

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Train with this optimizer. Raises `SessionError` where there is one already."""
        if self.optimizer is not None and self.optimizer is not optimizer:
            raise SessionError("a second optimizer: put the loop into oakum.session(...), which takes several")
        self.optimizer = optimizer

    def take_state(self, part: Stateful) -> None:
        """Keep the state of this part, too."""
        self.state[f"{len(self.state)}"] = part

    def take_loader(self, loader: DataLoader[Any]) -> None:
        """Train on the data of this loader. Raises `SessionError` where it is not one that shuffles a data set, or
        where there is one already."""
        if self._loader is not None:
            raise SessionError(
                "a second data loader that shuffles: training has one; give the others shuffle=False"
            )
        if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
            raise SessionError("the data loader has a sampler of its own: Oakum deals samples; give batch_size")
        if loader.drop_last:
            raise SessionError("the data loader has drop_last=True: each sample is visited once; leave it out")
        self._loader = loader

    @property
    def loader(self) -> DataLoader[Any]:
        """The loader that was given. Raises `SessionError` where none was."""
        if self._loader is None:
            raise SessionError("there is no data loader that shuffles: give one with shuffle=True to train on")
        return self._loader

    @property
    def batch_size(self) -> int:
        """Samples of a global batch."""
        return (self.loader.batch_size or 0) * self._accumulated

    @property
    def open(self) -> Session:
        """The session. Raises `SessionError` before the first epoch."""
        if self._session is None:
            raise SessionError("training has not begun: put it into `for epoch in ....epochs():`")
        return self._session

    @property
    def has_begun(self) -> bool:
        """Whether the session was begun."""
        return self._session is not None

    @property
    def is_first_rank(self) -> bool:
        """Whether this is rank 0; True before training."""
        return self.rank == 0

    @property
    def rank(self) -> int:
        """This rank's number; 0 before training."""
        return 0 if self._session is None else self._session.rank

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs, from the present one on.

        Where the loop is left early, training ends on all ranks at `end`, or when the script ends. Where this rank
        alone has lost an epoch's last step, and goes on in the next epoch, what the script's code after the epoch
        changes in the state is put back, since the others' state, which the rank has got, has it already. Raises
        `SessionError` where the loop over the batches is left in the middle of an epoch that is not left.
        """
        self.begin()
        running = self.open
        while running.is_open and not running.is_finished:
            epoch = running.finished_epochs
            try:
                yield epoch
            except GeneratorExit:
                # By a `break` or by an exception: a generator cannot tell, so training has not ended yet.
                running.leave_iteration()
                raise
            if self._kept_share is not None:
                running.put_back()
            elif not running.is_finished and running.finished_epochs == epoch:
                error = SessionError(
                    f"the loop over the batches was left in the middle of epoch {epoch}: leave the loop over "
                    "epochs, too, which ends training"
                )
                running.__exit__(SessionError, error, None)
                raise error
        self.end()

    def end(self) -> None:
        """End training on all ranks, where it has begun and not ended."""
        if self._session is not None and self._session.is_open:
            self._session.__exit__(None, None, None)

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return -(-self._num_samples // self.batch_size)

    def __len__(self) -> int:
        """Batches that the data loader has in an epoch. A rank alone computes as many, and one of several ranks
        fewer."""
        return -(-self._num_samples // (self.loader.batch_size or 1))

    @property
    def _num_samples(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """This rank's shares of the rest of the epoch, in parts."""
        try:
            yield from self._parts_of_epoch()
        except GeneratorExit:
            self.open.leave_iteration()
            raise

    def _parts_of_epoch(self) -> Iterator[Any]:
        running = self.open
        epoch = running.finished_epochs
        while running.finished_epochs == epoch:
            share = self.next_share()
            if share is None:
                return
            if running.finished_epochs != epoch:
                self._kept_share = share
                return
            with contextlib.closing(self.parts()) as parts:
                for rows in parts:
                    yield self._place(self.part_of(share, rows))

    def next_share(self) -> Any:
        """This rank's share of the next global batch; None after the end of training."""
        kept, self._kept_share = self._kept_share, None
        return next(self._shares, None) if kept is None else kept

    def parts(self) -> Generator[slice, None, None]:
        """The rows of this rank's share that are computed at once, each while its samples are computed."""
        num_samples = self.open.num_samples
        most = self.loader.batch_size or 0
        for rows, factor in weighed_parts(self.open, most, self._accumulated):
            self._factor = factor
            self.is_last_part = rows.stop == num_samples
            with self.open.part(rows.start, rows.stop - rows.start):
                yield rows

    def part_of(self, share: Any, rows: slice) -> Any:
        """These rows of this rank's share. Raises `SessionError` where it cannot be divided."""
        num_samples = self.open.num_samples
        return share if rows == slice(0, num_samples) else rows_of(share, rows, num_samples)

    def backward(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> None:
        """Add the gradient of the mean loss over the present part: over its samples or, with a `weight`, over so
        many items."""
        if weight is None:
            self.open.backward(loss if self._factor == 1 else loss * self._factor)
        else:
            self.open.backward(loss * weight, weight=weight)

    def reduce(self) -> bool:
        """Sum the gradients, as `Session.reduce` does; before the share's last part, return True."""
        return not self.is_last_part or self.open.reduce()

    def step(self) -> bool:
        """Take the optimizer's step, as `Session.step` does. Raises `SessionError` before the last part."""
        if not self.is_last_part:
            raise SessionError("a step before the last part of this rank's share: take it where accumulating ends")
        return self.open.step()

    def begin(self) -> None:
        """Begin the session: fill what was taken from the other ranks or the newest checkpoint, where there are
        any. Raises `SessionError` where there is nothing to train."""
        if self._session is not None:
            raise SessionError("epochs() a second time: one loop runs through all epochs")
        if not self.models or self.optimizer is None:
            raise SessionError("training has no model or no optimizer: prepare both before epochs()")
        self._session = session(
            self.models,
            self.optimizer,
            cast(SizedDataset, self.loader.dataset),
            batch_size=self.batch_size,
            epochs=self.num_epochs,
            seed=self.seed,
            state=self.state,
            collate=self.loader.collate_fn,
            workers=self.loader.num_workers or None,
            exact=self.exact,
        )
        self._session.how_to_weigh = self.how_to_weigh
        self._session.holders = self.holders
        self._session.__enter__()
        HOST.get().finish_later(self.end)
        self._shares = iter(self._session)


def weighed_parts(running: Session, most: int, num_batches: int | None = None) -> list[tuple[slice, float]]:
    """The rows of each part of this rank's share, of at most `most` samples, and what the mean over it is
    multiplied by.

    The libraries divide the sum of the batches' means by a number of batches, also where an epoch ends with fewer
    or smaller ones: by `num_batches`, or by as many as there are. So with n samples in the last step's batch and m
    in that of a sample's batch of the loader, its loss counts n / (batches m) times as in a mean over n."""
    num_samples, short, first = running.num_samples, running.short_batch, running.positions.start
    parts, at = [], 0
    while at < num_samples:
        count, factor = min(most, num_samples - at), 1.0
        if short is not None:
            begun = (first + at) // most * most
            size = min(most, short - begun)
            count = min(count, begun + size - first - at)
            factor = short / ((num_batches or -(-short // most)) * size)
        parts.append((slice(at, at + count), factor))
        at += count
    return parts


def rows_of(batch: Any, rows: slice, num_samples: int) -> Any:
    """Some samples of a collated batch of `num_samples`. Raises `SessionError` where a tensor in it has not one
    row for each sample."""
    if isinstance(batch, torch.Tensor) and batch.shape[:1] == (num_samples,):
        return batch[rows]
    if isinstance(batch, dict):
        return type(batch)({name: rows_of(value, rows, num_samples) for name, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rows_of(value, rows, num_samples) for value in batch))
    if isinstance(batch, list | tuple) and not (batch and isinstance(batch[0], str | int | float)):
        return type(batch)(rows_of(value, rows, num_samples) for value in batch)
    if isinstance(batch, list | tuple) and len(batch) == num_samples:
        return batch[rows]
    described = f" of shape {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else ""
    raise SessionError(
        f"a share of {num_samples} samples cannot be computed in parts, because its batch has a "
        f"{type(batch).__name__}{described} that has not one row for each sample: raise the data loader's "
        "batch_size, or change collate_fn"
    )


def shuffles(loader: DataLoader[Any]) -> bool:
    """Whether a data loader draws its samples at random, as one that is trained on does."""
    return isinstance(loader.sampler, RandomSampler)
