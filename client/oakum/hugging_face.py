"""A Hugging Face `Trainer` that trains on nodes which come and go: `from oakum.hugging_face import Trainer`.

The library's loop runs as it is. Its batches are the session's, its optimizer's step is the session's, and
`training_step` sums the gradients over the ranks before the library clips them. Where a rank is lost meanwhile,
`training_step` computes the batch again, dealt to the ranks that are left, so the library never sees it. Where the
others have taken that step, the library's loop begins anew within the epoch of the present one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from torch.optim import Optimizer
from transformers import TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.utils import is_datasets_available

from oakum.hugging_face_progress import Follower, Progress
from oakum.hugging_face_refusals import complaints, complaints_of, refuse_unordered
from oakum.relied_on import HUGGING_FACE
from oakum.surface.hugging_face import ARGUMENTS, CONSTRUCTOR
from oakum_worker.errors import SessionError
from oakum_worker.session.epoch_loop import weighed_parts
from oakum_worker.session.session import Session, is_alone, session
from oakum_worker.session.stepping import SteppingOptimizer, original_of

__all__ = ["Trainer"]

HUGGING_FACE.check()
_NO_SEARCH = "hyperparameter_search: each trial would be a second session; submit a trainer for each trial"


class Trainer(transformers.Trainer):
    """`transformers.Trainer` on nodes that come and go; alone under plain `python`.

    The global batch is `per_device_train_batch_size * gradient_accumulation_steps` samples, at any number of
    nodes, of which a rank computes `per_device_train_batch_size` at once. Under a trainer its spec has to give
    this batch, the epochs and the seed. Checkpoints are Oakum's: the library writes its own only where it trains
    alone.
    Raises `SessionError` for arguments that cannot be kept when nodes come and go.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *others: Any,
        exact: bool | None = None,
        **named: Any,
    ) -> None:
        """Takes what `transformers.Trainer` takes, and `exact` (True), which a trainer's spec gives, too."""
        args = TrainingArguments(output_dir="tmp_trainer") if args is None else args
        for complaint in (*complaints(args), *complaints_of(type(self), Trainer)):
            raise SessionError(f"oakum.hugging_face.Trainer: {complaint}")
        ARGUMENTS.warn_of_unknown_arguments(vars(args))
        CONSTRUCTOR.warn_of_unknown_arguments(named)
        self._session: Session | None = None
        self._exact = exact
        self._weight: Any = None
        """What the loss of the present part is a mean over, where `weigh` has said so."""
        self._micro_batch = args.per_device_train_batch_size
        self._progress = Progress(self)
        self._num_skipped = 0
        self._goes_on_in: int | None = None
        """The epoch of a step that was reached without this rank; None where the library is in it."""
        self._kept_share: Any = None
        """This rank's share of that step."""
        self._factor = 1.0
        """What the mean over the present part is multiplied by: 1 except in an epoch's last, smaller batch."""
        self._num_items: torch.Tensor | None = None
        self._lends_loader = False
        """Whether the next call of get_train_dataloader is that of the library's own loop."""
        self._has_share = self._has_sums = False
        """Whether this step's share came from get_batch_samples, and its sums from training_step."""
        super().__init__(model, _in_one_batch(args), *others, **named)
        HUGGING_FACE.check_object(self)
        self.accelerator.backward = self._backward
        self.callback_handler.callbacks.insert(0, Follower(self))
        if not is_alone():
            # A progress bar is opened by the process that is first at the beginning, and that may leave.
            self.remove_callback(transformers.trainer_callback.ProgressCallback)
            self.remove_callback(transformers.trainer_callback.PrinterCallback)
            self.add_callback(transformers.trainer_callback.PrinterCallback)

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *others: Any, **named: Any) -> Any:
        """Train to the end; returns what the library's `train` returns.

        Raises `SessionError` where it is asked to go on from a checkpoint of the library, or to search
        hyper-parameters.
        """
        if resume_from_checkpoint:
            raise SessionError(
                "train(resume_from_checkpoint=...): checkpoints are Oakum's, and a trainer goes on from the "
                "newest one by itself; leave the argument out"
            )
        if trial is not None:
            raise SessionError(_NO_SEARCH)
        self._lends_loader = True
        try:
            return super().train(None, None, *others, **named)
        finally:
            self._leave_session(*sys.exc_info())

    def hyperparameter_search(self, *others: Any, **named: Any) -> Any:
        """Raises `SessionError`: each trial would be a second session."""
        raise SessionError(_NO_SEARCH)

    def get_train_dataloader(self) -> Any:
        """The session's batches for `train`; for any other caller, who may want to evaluate on the training set, a
        data loader of the library. Raises `SessionError` where `train` is asked to read a data set that has no
        order."""
        if not self._lends_loader:
            return super().get_train_dataloader()
        self._lends_loader = False
        dataset, collate = self.train_dataset, self.data_collator
        if dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        refuse_unordered(dataset)
        if is_datasets_available() and isinstance(dataset, _datasets().Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        self._loader = _Loader(dataset, collate, self.args.train_batch_size)
        return self._loader

    def weigh(self, weight: float | torch.Tensor) -> None:
        """Say, within `compute_loss`, what the loss that it returns is a mean over, where that is no mean over
        samples: the number of tokens, or the sum of the classes' weights of these samples' labels."""
        self._weight = weight

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """The library's optimizer, whose step is the session's."""
        optimizer: Any = getattr(self, "optimizer", None)
        self.optimizer = None if optimizer is None else original_of(optimizer)
        stepping = SteppingOptimizer(super().create_optimizer(model), self._step)
        self.optimizer = stepping
        return stepping

    def _init_training_state(
        self, max_steps: int, num_steps_per_epoch: int, num_epochs: int, resume: Any, trial: Any
    ) -> tuple[int, int]:
        # The session fills model, optimizer, scheduler and the library's state, so they have to be there before
        # the library asks in which epoch to begin.
        super()._init_training_state(max_steps, num_steps_per_epoch, num_epochs, resume, trial)
        self._prepared = super()._prepare_for_training(max_steps, self._loader, None)
        self._begin_session(num_epochs)
        # Before callbacks open the runs of their trackers, in on_train_begin.
        self._tell_who_is_first()
        if self._open.steps:
            # The log and early stopping, which are part of the state, have counted this evaluation already.
            self.args.eval_on_start = False
        self._num_steps_per_epoch = num_steps_per_epoch
        epoch, self._num_skipped = divmod(self._open.steps, num_steps_per_epoch)
        return epoch, self._num_skipped

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume: Any) -> Any:
        return self._prepared

    def _run_epoch(self, model: Any, epoch: int, *others: Any, **named: Any) -> None:
        while self._goes_on_in in (None, epoch):
            self._goes_on_in = None
            try:
                super()._run_epoch(model, epoch, *others, **named)
            except _TrainingIsOver:
                self.control.should_training_stop = True
            except _LaterStep:
                self._goes_on_in, self._num_skipped = divmod(self._open.steps, self._num_steps_per_epoch)
                continue
            self._refuse_shorter_epoch()
            return

    def _refuse_shorter_epoch(self) -> None:
        is_in_the_middle = self._open.is_open and self._open.steps % self._num_steps_per_epoch
        if self.control.should_epoch_stop and is_in_the_middle and not self.control.should_training_stop:
            raise SessionError(
                "should_epoch_stop was set within an epoch, and Oakum reads each sample once per epoch: set "
                "should_training_stop, or train on a subset of the data set"
            )

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[Any, Any]:
        """This rank's share of the next global batch; nothing for a step of the epoch that was finished before
        this rank came."""
        if self._num_skipped:
            self._num_skipped -= 1
            return [], None
        share, self._kept_share = self._kept_share, None
        self._has_share = True
        return [self._next_share() if share is None else share], None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Compute this rank's share and sum the gradients over the ranks; returns the global batch's loss. Raises
        `SessionError` where the share did not come from `get_batch_samples`."""
        if not self._has_share:
            raise SessionError(
                f"{type(self).__name__}.get_batch_samples does not call super().get_batch_samples(), which counts "
                "the steps that a rank has not to compute again: call it, and change the batch that it returns"
            )
        self._has_share = False
        steps = self._open.steps
        self._compute_share(model, inputs)
        while not self._open.reduce():
            inputs = self._next_share()
            if self._open.steps != steps:
                self._kept_share = inputs
                raise _LaterStep
            self._compute_share(model, inputs)
        self._has_sums = True
        return torch.tensor(self._open.loss, device=self.args.device)

    def _compute_share(self, model: Any, inputs: Any) -> None:
        for first, count, part in self._parts(inputs):
            self._weight = None
            self._num_items = self._get_num_items_in_batch([part], self.args.device)
            # Of a part without an item, the sum and so the mean is 0.
            divisor = None if self._num_items is None else self._num_items.clamp(min=1)
            with self._open.part(first, count):
                super().training_step(model, part, divisor)

    def _parts(self, inputs: Any) -> Iterator[tuple[int, int, Any]]:
        """The parts of this rank's share: (first, count, part). Sets what the mean over the part is multiplied by.
        The library divides the sum of the batches' means by their number."""
        weighed = weighed_parts(self._open, self._micro_batch)
        cut = _cut(inputs, self._open.num_samples, [rows for rows, _ in weighed])
        for (rows, factor), part in zip(weighed, cut, strict=True):
            self._factor = factor
            yield rows.start, rows.stop - rows.start, part

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        if self._weight is not None:
            self._open.backward(loss * self._weight, weight=self._weight)
        elif self._num_items is None or self.loss_is_scaled_for_ga is False:
            # A mean over samples, of which the library takes the mean over the batches that it accumulates.
            self._open.backward(loss if self._factor == 1 else loss * self._factor)
        else:
            self._open.backward(loss * self._num_items.clamp(min=1), weight=self._num_items)

    def _next_share(self) -> Any:
        share = next(self._loader.batches, None)
        if share is None:
            raise _TrainingIsOver
        self._tell_who_is_first()
        return share

    def _tell_who_is_first(self) -> None:
        state, is_first = self.state, self._open.is_first_rank
        if is_first and not state.is_world_process_zero:
            # Trackers that were set up on a rank that was not the first have no run to write to.
            for callback in self.callback_handler.callbacks:
                if getattr(callback, "_initialized", False) and hasattr(callback, "setup"):
                    setattr(callback, "_initialized", False)  # noqa: B010  as it is no name of a TrainerCallback
        state.is_world_process_zero = state.is_local_process_zero = is_first

    def _finalize_training(self, *others: Any, **named: Any) -> Any:
        self._leave_session(None, None, None)
        return super()._finalize_training(*others, **named)

    def _begin_session(self, num_epochs: int) -> None:
        self._session = session(
            self.model,
            original_of(self.optimizer),
            self._loader.dataset,
            batch_size=self.args.train_batch_size,
            epochs=num_epochs,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            state={"scheduler": self.lr_scheduler, "hugging_face": self._progress},
            collate=self._loader.collate,
            workers=self.args.dataloader_num_workers or None,
            exact=self._exact,
        )
        self._session.how_to_weigh = "call self.weigh(items) in compute_loss with what the loss is a mean over"
        self._session.holders = {
            f"the callback {type(one).__name__}": one
            for one in self.callback_handler.callbacks
            if not isinstance(one, ExportableState)
        } | {"the trainer": self}
        self._session.__enter__()
        if self._session.has_batch_schedule:
            raise SessionError(
                "batch_schedule: the library's Trainer has one batch size; leave it out of the spec"
            )
        self._loader.batches = iter(self._session)

    def _leave_session(self, *error: Any) -> None:
        session = self._session
        if session is not None and session.is_open:
            session.__exit__(*error)

    def _step(self) -> None:
        if not self._has_sums:
            raise SessionError(
                f"{type(self).__name__}.training_step does not call super().training_step(), which sums the "
                "gradients over the ranks before they are clipped: call it, or override compute_loss in its place"
            )
        self._has_sums = False
        self._open.step()

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise SessionError("training has not begun: call train()")
        return self._session

    def floating_point_ops(self, inputs: Any) -> int:
        """Operations of the whole global batch, as many a sample as in this rank's share."""
        own: int = super().floating_point_ops(inputs)
        num_global = self._open.short_batch or self.args.train_batch_size
        return own * num_global // max(self._open.num_samples, 1)

    def _save_checkpoint(self, *others: Any, **named: Any) -> None:
        if is_alone():
            super()._save_checkpoint(*others, **named)

    def save_model(self, *others: Any, **named: Any) -> None:
        """Write the model's folder, on the first rank alone."""
        if self.is_world_process_zero():
            super().save_model(*others, **named)

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0."""
        return self._session is None or self._session.is_first_rank

    def is_local_process_zero(self) -> bool:
        """Whether this is rank 0, which alone prints."""
        return self.is_world_process_zero()


class _TrainingIsOver(Exception):  # noqa: N818  no error
    """The other ranks have ended training in an earlier step."""


class _LaterStep(Exception):  # noqa: N818  no error
    """The other ranks have taken the step that this one has lost, and perhaps more: the library has to follow."""


class _Loader:
    """What the library takes for its data loader."""

    def __init__(self, dataset: Any, collate: Any, batch_size: int) -> None:
        self.dataset, self.collate, self.batch_size = dataset, collate, batch_size
        self.batches: Iterator[Any] = iter(())
        """The session's batches through all epochs, once it has begun."""

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def _in_one_batch(args: TrainingArguments) -> TrainingArguments:
    """The arguments with the global batch as one batch of the library, on one device."""
    own = copy.copy(args)
    own.per_device_train_batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
    own.gradient_accumulation_steps = 1
    own._n_gpu = min(args.n_gpu, 1)
    return own


def _cut(inputs: Any, num_samples: int, parts: Sequence[slice]) -> Iterator[Any]:
    """Cut a collated batch into these rows. Raises `SessionError` where its samples are not along the first
    dimension of each tensor."""
    if len(parts) == 1:
        yield inputs
        return
    odd = [n for n, v in inputs.items() if not isinstance(v, torch.Tensor) or v.shape[:1] != (num_samples,)]
    if odd:
        raise SessionError(
            f"this rank's {num_samples} samples cannot be computed in parts, because {', '.join(odd)} of "
            "the collated batch has not one row for each sample: raise per_device_train_batch_size and lower "
            "gradient_accumulation_steps, or change the collator"
        )
    for rows in parts:
        yield type(inputs)({name: value[rows] for name, value in inputs.items()})


def _datasets() -> Any:
    import datasets

    return datasets
