"""Lightning's `Trainer` on nodes that come and go: `from oakum.lightning import Trainer`.

The library's loops run as they are, with one batch for each step: this rank's share of the global batch. The
strategy computes it in parts, sums the gradients over the ranks before the library clips them, and lets the
session take the step. Where a rank is lost meanwhile, the strategy computes the batch again, dealt to the ranks
that are left, so the library never sees it. The library's counters follow from the number of steps, and its
callbacks' states are part of the session's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    Callback,
    ModelCheckpoint,
)
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy

from oakum.library_names import private
from oakum.lightning_checkpoints import Files
from oakum.lightning_refusals import complaints, refuse_module
from oakum.lightning_strategy import ElasticStrategy, TrainingIsOver
from oakum.refusals import as_list, refuse_float16
from oakum.relied_on import (
    CALLBACKS_STATE_DICT,
    LIGHTNING_TRAINER,
    LOADER_ITER_FETCHER,
    RESULT_COLLECTION,
    TRAINING_EPOCH_LOOP,
)
from oakum.surface.lightning_trainer import CONSTRUCTOR
from oakum_worker.errors import SessionError
from oakum_worker.session.epoch_loop import EpochLoop
from oakum_worker.session.session import is_alone
from oakum_worker.session.stepping import original_of

LIGHTNING_TRAINER.check()
_DataLoaderIterDataFetcher: Any = private(LOADER_ITER_FETCHER)
_TrainingEpochLoop: Any = private(TRAINING_EPOCH_LOOP)
_ResultCollection: Any = private(RESULT_COLLECTION)
_callbacks_state_dict: Any = private(CALLBACKS_STATE_DICT)


class Trainer(pl.Trainer):
    """`lightning.Trainer` on nodes that come and go; alone under plain `python`.

    The global batch is the data loader's `batch_size * accumulate_grad_batches` samples, at any number of nodes,
    of which a rank computes `batch_size` at once; it is one batch of the library's loop. `seed` (0) gives the
    samples' order, as the spec's `seed` does. Training goes on from Oakum's checkpoints; the library's own, which
    the first rank writes where the script asks for them, are for the script to read. Raises `SessionError` for
    options and modules that cannot be kept when nodes come and go.
    """

    def __init__(self, *, seed: int | None = None, exact: Any = None, **named: Any) -> None:
        """Takes what `lightning.Trainer` takes, by name, and `seed` and `exact`, which a trainer's spec gives,
        too."""
        for complaint in complaints(named):
            raise SessionError(f"oakum.lightning.Trainer: {complaint}")
        refuse_float16(named.get("precision"))
        CONSTRUCTOR.warn_of_unknown_arguments(named)
        self._accumulated: int = named.pop("accumulate_grad_batches", 1)
        self._seed, self._exact = seed, exact
        self._new_loop()
        if not is_alone():
            named |= {"enable_progress_bar": False, "enable_model_summary": False}
        callbacks = named.pop("callbacks", None) or []
        own: dict[str, Any] = {
            # A rank is one process of a fragment, whatever the scheduler's variables say.
            "devices": 1,
            "plugins": [*as_list(named.pop("plugins", None)), LightningEnvironment()],
            "callbacks": [_Beginning(), *as_list(callbacks)],
        }
        super().__init__(**(named | own))
        LIGHTNING_TRAINER.check_object(self)
        self._files = Files(self)
        if not is_alone():
            self._refrain_from_checkpoints(as_list(callbacks))
        # Made anew with the library's device and precision, which it has chosen by now.
        chosen = self.strategy
        if type(chosen) is not SingleDeviceStrategy:
            raise SessionError(f"oakum.lightning.Trainer: {type(chosen).__name__}: a rank has one device")
        refuse_float16(getattr(self.precision_plugin, "precision", None))
        chosen.__class__ = ElasticStrategy
        self._strategy_of_ranks.trainer = self
        self.fit_loop.epoch_loop = _EpochLoop(self, self.min_steps, self.max_steps)
        # The agent's signals are the rank's own.
        self._signal_connector.register_signal_handlers = lambda: None
        self._log_on_all_ranks = self._logger_connector.log_metrics
        self._logger_connector.log_metrics = self._log_on_first_rank

    def fit(self, model: Any, *others: Any, ckpt_path: Any = None, **named: Any) -> None:
        """Train to the end, as the library's `fit` does.

        Raises `SessionError` for a module that optimizes by hand or with several optimizers, and where it is asked
        to go on from a checkpoint of the library.
        """
        if ckpt_path is not None:
            raise SessionError(
                "fit(ckpt_path=...): checkpoints are Oakum's, and a trainer goes on from the newest one by "
                "itself; leave the argument out"
            )
        refuse_module(model)
        self._new_loop()
        self._files = Files(self)
        try:
            super().fit(model, *others, **named)
            if not is_alone():
                self._files.wait()
        finally:
            self._leave(*sys.exc_info())

    def _refrain_from_checkpoints(self, own_callbacks: list[Any]) -> None:
        """The callback that the library adds by itself writes nothing, and names nothing."""
        for callback in self.checkpoint_callbacks:
            if type(callback) is ModelCheckpoint and not any(callback is one for one in own_callbacks):
                callback.save_top_k = 0

    def _new_loop(self) -> None:
        self._loop = EpochLoop(
            None,
            self._accumulated,
            lambda batch: batch,
            how_to_weigh='return {"loss": loss, "weight": items} from training_step, what the loss is a mean over',
        )
        self._loop.seed, self._loop.exact = self._seed, self._exact

    @property
    def _strategy_of_ranks(self) -> ElasticStrategy:
        assert isinstance(self.strategy, ElasticStrategy)
        return self.strategy

    def _begin(self) -> None:
        """Begin the session, and bring the library's counters to its step."""
        LIGHTNING_TRAINER.check_training(self)
        loop = self._loop
        if isinstance(self.fit_loop._data_fetcher, _DataLoaderIterDataFetcher):
            raise SessionError("training_step(dataloader_iter) reads batches itself: take `batch` instead")
        limits = [self.fit_loop.max_epochs, -(-self.max_steps // loop.num_steps)]
        loop.num_epochs = min(limit for limit in limits if limit is not None and limit > 0)
        loop.take_model(self.lightning_module)
        loop.take_optimizer(original_of(self.optimizers[0]))
        for config in self.lr_scheduler_configs:
            loop.take_state(config.scheduler)
        loop.take_state(_Callbacks(self))
        if not is_alone():
            self._files.begin()
            loop.take_state(self._files)
        loop.holders = {
            f"the callback {type(one).__name__}": one
            for one in self.callbacks
            if type(one).state_dict is Callback.state_dict
        }
        loop.begin()
        if loop.open.has_batch_schedule:
            raise SessionError("batch_schedule: the Trainer has one batch size; leave it out of the spec")
        self._count_epochs()
        self._count_batches()

    def _count_epochs(self) -> None:
        epoch = self._loop.open.steps // self._loop.num_steps
        progress = self.fit_loop.epoch_progress
        for counts in (progress.current, progress.total):
            counts.ready = counts.started = counts.processed = counts.completed = epoch

    def _count_batches(self) -> None:
        """Set what the library counts in its loop over batches as it is after the session's finished steps."""
        steps, inner = self._loop.open.steps, self.fit_loop.epoch_loop
        number = steps % self._loop.num_steps
        for progress in (inner.batch_progress, inner.automatic_optimization.optim_progress.optimizer.step):
            for counts, value in ((progress.current, number), (progress.total, steps)):
                counts.ready = counts.completed = value
        for counts, value in ((inner.batch_progress.current, number), (inner.batch_progress.total, steps)):
            counts.started = counts.processed = value
        inner.batch_progress.is_last_batch = False
        inner._batches_that_stepped = steps

    def _follow_repeated_step(self) -> None:
        """Set the counters as they are within the step that is now under way. It may be a later one than before,
        even of the next epoch, where the other ranks could take the step that this one has lost."""
        started = self.fit_loop.epoch_progress.current.started - self.fit_loop.epoch_progress.current.processed
        self._count_epochs()
        for counts in (self.fit_loop.epoch_progress.current, self.fit_loop.epoch_progress.total):
            counts.ready += started
            counts.started += started
        self._count_batches()
        inner, fetcher = self.fit_loop.epoch_loop, self.fit_loop._data_fetcher
        assert fetcher is not None
        for counts in (inner.batch_progress.current, inner.batch_progress.total):
            counts.ready += 1
            counts.started += 1
        step = inner.automatic_optimization.optim_progress.optimizer.step
        step.current.ready += 1
        step.total.ready += 1
        fetcher.fetched = inner.batch_progress.current.ready
        fetcher.done = inner.batch_progress.is_last_batch = fetcher.fetched >= self._loop.num_steps

    def _end_here(self) -> None:
        """Have the library leave its loops: the other ranks have ended training in an earlier step."""
        self.fit_loop.min_epochs = 0
        self.fit_loop.epoch_loop.min_steps = None
        self.should_stop = True

    def _leave(self, *error: Any) -> None:
        if self._loop.has_begun and self._loop.open.is_open:
            self._loop.open.__exit__(*error)

    def _log_on_first_rank(self, metrics: Any, step: int | None = None) -> None:
        if self._loop.is_first_rank:
            self._log_on_all_ranks(metrics, step)

    def save_checkpoint(
        self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a checkpoint of the library, on the first rank alone."""
        if is_alone():
            super().save_checkpoint(filepath, weights_only, storage_options)
        else:
            self._files.save(os.fspath(filepath), weights_only)

    def print(self, *others: Any, **named: Any) -> None:
        """Print on the first rank alone."""
        if self.is_global_zero:
            super().print(*others, **named)

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self._loop.is_first_rank


class _EpochLoop(_TrainingEpochLoop):
    """The library's loop over the batches of an epoch, which may begin in the epoch's middle."""

    def __init__(self, trainer: Trainer, min_steps: int | None, max_steps: int) -> None:
        super().__init__(trainer, min_steps, max_steps)
        self._results = _OwnShares(training=True)

    def reset(self) -> None:
        """Begin with the first batch that the session has not finished."""
        super().reset()
        assert isinstance(self.trainer, Trainer)
        self.trainer._count_batches()

    def advance(self, data_fetcher: Any) -> None:
        """Train on one batch."""
        assert isinstance(self.trainer, Trainer)
        before = self.batch_progress.total.ready
        try:
            super().advance(data_fetcher)
        except TrainingIsOver:
            self.trainer._end_here()
            raise StopIteration from None
        except StopIteration:
            if self.batch_progress.total.ready != before:
                raise SessionError(
                    "on_train_batch_start returned -1, which cuts an epoch short, and Oakum reads each sample "
                    "once per epoch: set trainer.should_stop, or train on a subset of the data set"
                ) from None
            raise


class _OwnShares(_ResultCollection):
    """What the module logs while it trains: numbers of this rank's share, by which nothing may be decided."""

    def metrics(self, on_step: bool) -> Any:
        """The metrics to log and to show, and none for callbacks and schedulers to monitor."""
        metrics = super().metrics(on_step)
        metrics["callback"].clear()
        return metrics


class _Beginning(Callback):
    """Begins the session before the library's loop and other callbacks, and ends it after the loop."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin."""
        assert isinstance(trainer, Trainer)
        trainer._begin()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End training on all ranks, where the library has left its loop early."""
        assert isinstance(trainer, Trainer)
        trainer._loop.end()


class _Callbacks:
    """The states of the library's callbacks and of the module's own hooks, as a part of the session's state."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """The states, and the metrics that can be monitored."""
        trainer, module = self._trainer, self._trainer.lightning_module
        own: dict[str, Any] = {}
        module.on_save_checkpoint(own)
        return {
            "callbacks": _callbacks_state_dict(trainer),
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "module": own,
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over a state of `state_dict`."""
        trainer = self._trainer
        for callback in trainer.callbacks:
            if (own := state["callbacks"].get(callback.state_key)) is not None:
                if isinstance(callback, ModelCheckpoint):
                    # Otherwise it would forget its files, as loggers number their folders by process.
                    callback.dirpath = own.get("dirpath", callback.dirpath)
                callback.load_state_dict(own)
        metrics = trainer._logger_connector._callback_metrics
        metrics.clear()
        metrics.update(
            {name: torch.tensor(value, dtype=torch.float64) for name, value in state["metrics"].items()}
        )
        trainer.lightning_module.on_load_checkpoint(dict(state["module"]))
