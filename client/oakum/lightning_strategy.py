"""The strategy by which Lightning's loop takes the session's steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from oakum.library_names import private
from oakum.lightning_checkpoints import write_at_once
from oakum.relied_on import CALL_STRATEGY_HOOK, LIGHTNING_TRAINER
from oakum_worker.errors import SessionError
from oakum_worker.session.epoch_loop import shuffles
from oakum_worker.session.session import is_alone
from oakum_worker.session.stepping import SteppingOptimizer

if TYPE_CHECKING:
    from oakum.lightning_trainer import Trainer

LIGHTNING_TRAINER.check()
_call_strategy_hook: Any = private(CALL_STRATEGY_HOOK)


_NO_CLOSURE = (
    "the module's optimizer_step calls the closure itself: call optimizer.step(closure=optimizer_closure), which "
    "computes the gradients and sums them over the ranks"
)


class TrainingIsOver(Exception):  # noqa: N818  no error
    """The other ranks have ended training in an earlier step."""


class ElasticStrategy(SingleDeviceStrategy):
    """One device, whose steps are the session's."""

    trainer: Trainer
    optimizers: list[Any]
    _rows: slice | None = None
    """The rows of the present part, while the session computes it."""
    _weight: Any = None
    """What the loss of the present part is a mean over, where the module has said so."""
    _again: Any = None
    """The batch in the place of the one that the library has, after a rank was lost."""

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """The module's optimizer, whose step is the session's. Raises `SessionError` where there is none."""
        super().setup_optimizers(trainer)
        [optimizer] = self.optimizers
        if not optimizer.param_groups:
            raise SessionError("configure_optimizers() returned none: return an optimizer")
        self.optimizers = [SteppingOptimizer(optimizer, lambda: self.trainer._loop.step())]

    def process_dataloader(self, dataloader: object) -> object:
        """The session's shares in the place of the loader that is trained on."""
        if self.trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        if not isinstance(dataloader, DataLoader) or not shuffles(dataloader):
            raise SessionError(
                "the training data loader has to be a DataLoader with shuffle=True: Oakum deals the samples in an "
                "order that follows from the seed"
            )
        self.trainer._loop.take_loader(dataloader)
        return _Shares(self.trainer)

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **named: Any
    ) -> Any:
        """Compute the share, sum the gradients over the ranks, clip them, and take the step."""
        stepping = _ClosureFirst(self.optimizers[0])
        return super().optimizer_step(stepping, lambda: self._compute(closure), model, **named)

    def _compute(self, closure: Callable[[], Any]) -> Any:
        loop = self.trainer._loop
        self._again = None
        result = self._compute_share(closure)
        while not loop.open.reduce():
            share = loop.next_share()
            if share is None:
                raise TrainingIsOver
            self.trainer._follow_repeated_step()
            self.trainer._files.catch_up()
            self._again = self._transferred(share)
            result = self._compute_share(closure)
        return result

    def _compute_share(self, closure: Callable[[], Any]) -> Any:
        result = None
        for rows in self.trainer._loop.parts():
            self._rows = rows
            result = closure()
        self._rows = None
        return result

    def _transferred(self, share: Any) -> Any:
        """A share as the library gives it to the module."""
        share = self.precision_plugin.convert_input(share)
        share = self.trainer.lightning_module._on_before_batch_transfer(share, dataloader_idx=0)
        return _call_strategy_hook(self.trainer, "batch_to_device", share, dataloader_idx=0)

    def training_step(self, batch: Any, *others: Any, **named: Any) -> Any:
        """The loss of the present part of the share. Raises `SessionError` where the module's `optimizer_step`
        calls the closure itself, or its `training_step` returns None."""
        if self._rows is None:
            raise SessionError(_NO_CLOSURE)
        share = batch if self._again is None else self._again
        result = super().training_step(self.trainer._loop.part_of(share, self._rows), *others, **named)
        if result is None:
            raise SessionError(
                "training_step returned None, which skips a part of the batch: return a loss, such as one times 0"
            )
        self._weight = result.get("weight") if isinstance(result, Mapping) else None
        return result

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *_: Any, **__: Any) -> Tensor:
        """Add the gradient of the mean loss over the present part."""
        assert self.lightning_module is not None
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self.trainer._loop.backward(loss, self._weight)
        return self.precision_plugin.post_backward(loss, self.lightning_module)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint of the library."""
        if is_alone():
            super().save_checkpoint(checkpoint, filepath, storage_options)
        else:
            write_at_once(self.checkpoint_io, checkpoint, os.fspath(filepath), storage_options)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint of the library, on the first rank alone."""
        if is_alone():
            super().remove_checkpoint(filepath)
        else:
            self.trainer._files.remove(os.fspath(filepath))

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.trainer._loop.is_first_rank

    @property
    def global_rank(self) -> int:
        """This rank's number; another process may have it after the next step."""
        return self.trainer._loop.rank


class _ClosureFirst(SteppingOptimizer):
    """An optimizer whose step computes the gradients by the closure that it is given, as torch's own do."""

    def __init__(self, stepping: Any) -> None:
        super().__init__(stepping.original, stepping.step)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute, and have the session take the step; returns what the closure does."""
        result = None if closure is None else closure()
        super().step()
        return result


class _Shares:
    """What the library takes for its data loader: this rank's shares of an epoch's global batches."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def __len__(self) -> int:
        return self._trainer._loop.num_steps

    def __iter__(self) -> Iterator[Any]:
        while True:
            share = self._trainer._loop.next_share()
            if share is None:
                self._trainer._end_here()
                return
            self._trainer._files.catch_up()
            yield share
