"""Lightning's `Trainer` and `Fabric` on nodes that come and go.

from oakum.lightning import Fabric

fabric = Fabric(epochs=3)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader)
for epoch in fabric.epochs():
    for batch in loader:
        fabric.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightning.fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from oakum.lightning_trainer import Trainer
from oakum.refusals import as_list, refuse_arguments_of_backward, refuse_float16
from oakum.relied_on import FABRIC
from oakum.surface.fabric import CONSTRUCTOR
from oakum_worker.errors import SessionError
from oakum_worker.session.epoch_loop import EpochLoop, shuffles
from oakum_worker.session.stepping import SteppingOptimizer
from oakum_worker.task import Stateful

__all__ = ["Fabric", "Trainer"]

FABRIC.check()


class Fabric(lightning.fabric.Fabric):
    """`lightning.Fabric` on nodes that come and go; alone under plain `python`.

    A global batch has `batch_size * accumulated` samples of the data loader that shuffles, at any number of nodes,
    and a rank computes `batch_size` of them at once. Where a rank is lost in a step, `step_was_taken` is False,
    and the batch comes again. What is given to `setup` and `keep` is the trainer's state. Raises `SessionError`
    for what cannot be kept when nodes come and go.
    """

    def __init__(
        self,
        *,
        epochs: int | None = None,
        accumulated: int = 1,
        seed: int | None = None,
        exact: bool | None = None,
        **named: Any,
    ) -> None:
        """Takes what `lightning.Fabric` takes, and the `epochs` (1), `seed` (0) and `exact` (True) to train by,
        which a trainer's spec gives, too."""
        CONSTRUCTOR.warn_of_unknown_arguments(named)
        refuse_float16(named.get("precision"))
        # A rank is one process of a fragment, whatever the scheduler's variables say.
        plugins = [*as_list(named.pop("plugins", None)), LightningEnvironment()]
        super().__init__(**({"devices": 1} | named | {"plugins": plugins}))
        _refuse(self)
        self._loop = EpochLoop(
            epochs,
            accumulated,
            self.to_device,
            how_to_weigh="give fabric.backward(loss, weight=items) what the loss is a mean over",
        )
        self._loop.seed, self._loop.exact = seed, exact
        self.step_was_taken = True
        """Whether the last call of `optimizer.step()` took its step; False where a rank was lost."""

    def epochs(self) -> Iterator[int]:
        """The epochs' numbers, from the present one on: the loop to put around that over the data loader."""
        return self._loop.epochs()

    def keep(self, *parts: Stateful) -> None:
        """Make these objects part of the trainer's state: schedulers, averages, the best loss so far."""
        for part in parts:
            self._loop.take_state(part)

    def end(self) -> None:
        """End training on all ranks, where the script has left its loop before the last epoch, and goes on."""
        self._loop.end()

    @property
    def is_accumulating(self) -> bool:
        """Whether further batches of the loader belong to this step, so that it is not taken yet."""
        return not self._loop.is_last_part

    def setup(self, module: nn.Module, *optimizers: Optimizer, scheduler: Any = None, **named: Any) -> Any:
        """Set up a model, its optimizer and scheduler; returns them as the library does."""
        self._loop.take_model(module)
        if scheduler is not None:
            self.keep(scheduler)
        return super().setup(module, *map(self._stepping, optimizers), scheduler=scheduler, **named)

    def setup_module(self, module: nn.Module, *others: Any, **named: Any) -> Any:
        """Set up a model alone."""
        self._loop.take_model(module)
        return super().setup_module(module, *others, **named)

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """Set up an optimizer alone."""
        return super().setup_optimizers(*map(self._stepping, optimizers))

    def setup_dataloaders(self, *dataloaders: DataLoader[Any], **named: Any) -> Any:
        """This rank's shares of the data loader that shuffles; others are read whole on every rank."""
        shares = [self._shares_of(loader, **named) for loader in dataloaders]
        return shares[0] if len(shares) == 1 else shares

    def backward(self, tensor: Any, *others: Any, weight: Any = None, **named: Any) -> None:
        """Add the gradient of the mean loss over the present batch. With a `weight` it is a mean over so many
        items that are no samples, such as tokens, or over the sum of their classes' weights. Raises `SessionError`
        for arguments of torch's own `backward`."""
        named.pop("model", None)
        refuse_arguments_of_backward(named | ({"gradient": others[0]} if others else {}))
        self._loop.backward(tensor, weight)

    def clip_gradients(self, *others: Any, **named: Any) -> Any:
        """Clip the global batch's gradient; returns its norm before."""
        # Without the sums, which a lost rank has taken along, no step follows.
        return super().clip_gradients(*others, **named) if self._loop.reduce() else None

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self._loop.is_first_rank

    @property
    def global_rank(self) -> int:
        """This rank's number; another process may have it after the next step."""
        return self._loop.rank

    def print(self, *others: Any, **named: Any) -> None:
        """Print on the first rank alone."""
        if self.is_global_zero:
            print(*others, **named)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log on the first rank alone."""
        if self.is_global_zero:
            super().log_dict(metrics, step)

    def save(self, *others: Any, **named: Any) -> None:
        """Write a file, on the first rank alone. Checkpoints are Oakum's."""
        if self.is_global_zero:
            super().save(*others, **named)

    def _stepping(self, optimizer: Optimizer) -> Optimizer:
        self._loop.take_optimizer(optimizer)
        return SteppingOptimizer(optimizer, self._step)

    def _shares_of(self, loader: DataLoader[Any], **named: Any) -> Any:
        if not shuffles(loader):
            return super().setup_dataloaders(loader, **named)
        self._loop.take_loader(loader)
        return self._loop

    def _step(self) -> None:
        self.step_was_taken = self._loop.step()


def _refuse(fabric: lightning.fabric.Fabric) -> None:
    if not isinstance(fabric.strategy, SingleDeviceStrategy):
        raise SessionError(
            f"Fabric with {type(fabric.strategy).__name__}: a rank has one device, and Oakum the ranks; leave "
            "strategy, devices and num_nodes out"
        )
    refuse_float16(getattr(fabric.strategy.precision, "precision", None))
