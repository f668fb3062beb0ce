"""An `Accelerator` of Hugging Face whose loop runs on nodes that come and go.

from oakum.accelerate import Accelerator

accelerator = Accelerator(epochs=3)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in accelerator.epochs():
    for batch in loader:
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType, DynamoBackend, send_to_device
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from oakum.refusals import refuse_arguments_of_backward
from oakum.relied_on import ACCELERATE
from oakum.surface.accelerate import CONSTRUCTOR
from oakum_worker.errors import SessionError
from oakum_worker.session.epoch_loop import EpochLoop, shuffles
from oakum_worker.session.session import is_alone
from oakum_worker.session.stepping import SteppingOptimizer, original_of

__all__ = ["Accelerator"]

ACCELERATE.check()
_SHARDED = "shard the model with a Task and `parallel`; leave it out"
_COMPILED = "compile with a Task and `compile: true`; leave it out"
_REFUSED = {
    **dict.fromkeys(("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin"), _SHARDED),
    **dict.fromkeys(("torch_tp_plugin", "parallelism_config"), _SHARDED),
    **dict.fromkeys(("dynamo_backend", "dynamo_plugin"), _COMPILED),
}
"""Argument of the constructor -> what to do in its place."""


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` on nodes that come and go; alone under plain `python`.

    A global batch has `batch_size * gradient_accumulation_steps` samples of the data loader that shuffles, at any
    number of nodes, and a rank computes `batch_size` of them at once. Where a rank is lost in a step,
    `optimizer_step_was_skipped` is True, the scheduler does not step, and the batch comes again. What is given to
    `prepare` and `register_for_checkpointing` is the trainer's state. Raises `SessionError` for what cannot be
    kept when nodes come and go.
    """

    def __init__(
        self,
        *others: Any,
        epochs: int | None = None,
        seed: int | None = None,
        exact: bool | None = None,
        **named: Any,
    ) -> None:
        """Takes what `accelerate.Accelerator` takes, and the `epochs` (1), `seed` (0) and `exact` (True) to train
        by, which a trainer's spec gives, too."""
        CONSTRUCTOR.warn_of_unknown_arguments(named)
        _refuse_arguments(others, named)
        super().__init__(*others, **named)
        ACCELERATE.check_object(self)
        _refuse(self)
        self._loop = EpochLoop(
            epochs,
            self.gradient_accumulation_steps,
            lambda batch: send_to_device(batch, self.device),
            how_to_weigh="give accelerator.backward(loss, weight=items) what the loss is a mean over",
        )
        self._loop.seed, self._loop.exact = seed, exact
        self._open_trackers: Callable[[], None] | None = None
        """Opens the trackers' runs, which wait until it is known which rank is the first."""
        self._unlogged: list[Callable[[], None]] = []
        """What was logged before."""

    def epochs(self) -> Iterator[int]:
        """The epochs' numbers, from the present one on: the loop to put around that over the data loader."""
        return self._loop.epochs()

    def prepare_model(self, model: nn.Module, *others: Any, **named: Any) -> Any:
        """Prepare the model as the library does on one device."""
        self._loop.take_model(model)
        return super().prepare_model(model, *others, **named)

    def prepare_optimizer(self, optimizer: Optimizer, *others: Any, **named: Any) -> Any:
        """Returns an optimizer whose step is taken with the sums of all ranks' gradients."""
        if isinstance(optimizer, AcceleratedOptimizer):
            return optimizer
        self._loop.take_optimizer(original_of(optimizer))
        prepared = super().prepare_optimizer(SteppingOptimizer(optimizer, self._step), *others, **named)
        ACCELERATE.check_training(prepared)
        return prepared

    def prepare_data_loader(self, data_loader: DataLoader[Any], *others: Any, **named: Any) -> Any:
        """Returns this rank's shares of a data loader that shuffles; any other is read whole on every rank."""
        if not shuffles(data_loader):
            return super().prepare_data_loader(data_loader, *others, **named)
        self._loop.take_loader(data_loader)
        return self._loop

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare the scheduler, which is part of the trainer's state."""
        self._loop.take_state(scheduler)
        return super().prepare_scheduler(scheduler)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Keep the states of these objects."""
        super().register_for_checkpointing(*objects)
        for one in objects:
            self._loop.take_state(one)

    def backward(self, loss: Any, *, weight: Any = None, **kwargs: Any) -> None:
        """Add the gradient of the mean loss over the present batch. With a `weight` it is a mean over so many
        items that are no samples, such as tokens, or over the sum of their classes' weights. Raises `SessionError`
        for arguments of torch's own `backward`."""
        refuse_arguments_of_backward(kwargs)
        self._loop.backward(loss, weight)

    def _do_sync(self) -> None:
        self.gradient_state._set_sync_gradients(self._loop.is_last_part)

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Do nothing: gradients are summed when the step is taken."""
        yield

    def clip_grad_norm_(self, *others: Any, **named: Any) -> Any:
        """Clip the global batch's gradient; returns its norm before."""
        self._loop.reduce()
        return super().clip_grad_norm_(*others, **named)

    def clip_grad_value_(self, *others: Any, **named: Any) -> None:
        """Clip the elements of the global batch's gradient."""
        self._loop.reduce()
        super().clip_grad_value_(*others, **named)

    def lomo_backward(self, *others: Any, **named: Any) -> None:
        """Raises `SessionError`: LOMO steps before gradients are summed."""
        raise SessionError("lomo_backward: use an optimizer that steps all layers at once, and backward(loss)")

    @property
    def gradient_accumulation_steps(self) -> Any:
        """What the constructor was given."""
        return super().gradient_accumulation_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        raise SessionError(
            "gradient_accumulation_steps is set after Accelerator(...): it is a factor of the global batch, which "
            "is the same in all steps; give it to Accelerator(...)"
        )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Skip batches of a loader that does not shuffle. Raises `SessionError` for the one that is trained on."""
        if dataloader is self._loop:
            raise SessionError(
                "skip_first_batches: a trainer goes on in the epoch's middle by itself; leave the call out"
            )
        return super().skip_first_batches(dataloader, num_batches)

    def set_trigger(self) -> None:
        """Raises `SessionError`: ranks would decide differently."""
        raise SessionError(_NO_TRIGGER)

    def check_trigger(self) -> bool:
        """Raises `SessionError`: ranks would decide differently."""
        raise SessionError(_NO_TRIGGER)

    def end_training(self) -> None:
        """End training on all ranks, where the script has left its loop before the last epoch; then end the
        library's trackers."""
        self._loop.end()
        self._begin_to_log()
        super().end_training()

    def save_state(self, *others: Any, **named: Any) -> str:
        """Raises `SessionError`: checkpoints are Oakum's."""
        raise SessionError("save_state: checkpoints are Oakum's, by the spec's `checkpoint`; leave the call out")

    def load_state(self, *others: Any, **named: Any) -> None:
        """Raises `SessionError`: a trainer goes on by itself."""
        raise SessionError(
            "load_state: a trainer goes on from its newest checkpoint by itself; leave the call out"
        )

    def save_model(self, *others: Any, **named: Any) -> None:
        """Write the model, on the first rank alone."""
        if self.is_main_process:
            super().save_model(*others, **named)

    def save(self, *others: Any, **named: Any) -> None:
        """Write an object, on the first rank alone."""
        if self.is_main_process:
            super().save(*others, **named)

    def init_trackers(self, *others: Any, **named: Any) -> None:
        """Open the trackers' runs, on the first rank alone. Ranks know which one is the first when training
        begins, so there the runs are opened with the first line that is logged after that. A rank that becomes the
        first later opens runs of its own."""
        self._open_trackers = functools.partial(super().init_trackers, *others, **named)
        self._begin_to_log()

    def get_tracker(self, *others: Any, **named: Any) -> Any:
        """The tracker on the first rank, and one that does nothing on the others. Raises `SessionError` before
        training, when ranks do not know yet which one is the first."""
        if not self._knows_first_rank:
            raise SessionError(
                "get_tracker before the first epoch: ranks learn there which one is the first, and has the run; "
                "call it in the loop"
            )
        self._begin_to_log()
        return super().get_tracker(*others, **named)

    def log(self, *others: Any, **named: Any) -> None:
        """Log on the first rank alone."""
        line = functools.partial(super().log, *others, **named)
        if not self._knows_first_rank:
            self._unlogged.append(line)
        elif self.is_main_process:
            self._begin_to_log()
            line()

    @property
    def _knows_first_rank(self) -> bool:
        return is_alone() or self._loop.has_begun

    def _begin_to_log(self) -> None:
        if not self._knows_first_rank or not self.is_main_process or self._open_trackers is None:
            return
        waiting, self._open_trackers, self._unlogged = [self._open_trackers, *self._unlogged], None, []
        for call in waiting:
            call()

    def on_main_process(self, function: Any = None) -> Any:
        """A decorator: the function runs on the first rank alone."""
        return _where(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Any = None) -> Any:
        """A decorator: the function runs on the first rank alone."""
        return _where(function, lambda: self.is_main_process)

    def on_last_process(self, function: Any) -> Any:
        """A decorator: the function runs on one rank alone, which is the first."""
        return _where(function, lambda: self.is_main_process)

    def on_process(self, function: Any = None, process_index: int | None = None) -> Any:
        """A decorator: the function runs on the rank of this number."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return _where(function, lambda: self.process_index == (process_index or 0))

    def on_local_process(self, function: Any = None, local_process_index: int | None = None) -> Any:
        """A decorator: the function runs on the rank of this number."""
        return self.on_process(function, local_process_index)

    def print(self, *others: Any, **named: Any) -> None:
        """Print on the first rank alone."""
        if self.is_main_process:
            print(*others, **named)

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self._loop.is_first_rank

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0, which alone prints."""
        return self._loop.is_first_rank

    @property
    def process_index(self) -> int:
        """This rank's number; another process may have it after the next step."""
        return self._loop.rank

    @property
    def local_process_index(self) -> int:
        """This rank's number, too."""
        return self._loop.rank

    def _step(self) -> None:
        taken = self._loop.step()
        for one in self._optimizers:
            one._is_overflow = not taken


def _where(function: Any, is_here: Callable[[], bool]) -> Any:
    """The function, called where `is_here` holds at the time of the call."""

    @functools.wraps(function)
    def called(*others: Any, **named: Any) -> Any:
        return function(*others, **named) if is_here() else None

    return called


_NO_TRIGGER = (
    "set_trigger and check_trigger tell of one rank alone, so that ranks would decide differently: decide by what "
    "is equal on all ranks, such as a loss of validation"
)


def _refuse_arguments(others: tuple[Any, ...], named: dict[str, Any]) -> None:
    arguments = inspect.signature(accelerate.Accelerator).bind_partial(*others, **named).arguments
    for name, advice in _REFUSED.items():
        if arguments.get(name) not in (None, "no", DynamoBackend.NO):
            raise SessionError(f"{name} is set, and cannot be kept when nodes come and go: {advice}")
    if not arguments.get("step_scheduler_with_optimizer", True):
        raise SessionError(
            "step_scheduler_with_optimizer=False: a scheduler would step once for each part of a rank's share, "
            "whose number depends on the ranks; leave it out, or step the scheduler where sync_gradients is True "
            "without giving it to prepare(), but to register_for_checkpointing()"
        )


def _refuse(accelerator: accelerate.Accelerator) -> None:
    if accelerator.mixed_precision in ("fp16", "fp8"):
        raise SessionError(f"mixed_precision={accelerator.mixed_precision!r}: use 'bf16'")
    if accelerator.state.dynamo_plugin.backend is not DynamoBackend.NO:
        raise SessionError(f"ACCELERATE_DYNAMO_BACKEND is set: {_COMPILED}")
    if accelerator.distributed_type is not DistributedType.NO or accelerator.num_processes > 1:
        raise SessionError(
            f"accelerate is set up for {accelerator.distributed_type}: start the script with plain python, or "
            "submit it to Oakum, without `accelerate launch`, FSDP or DeepSpeed"
        )
