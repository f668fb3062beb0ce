"""What of Lightning's `Trainer` and modules cannot be kept when nodes come and go, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from lightning.pytorch.utilities.model_helpers import is_overridden

from oakum.lightning_checkpoints import refuse_clock
from oakum.refusals import as_list
from oakum_worker.errors import SessionError

_REFUSED_CALLBACKS = {
    BatchSizeFinder: "give the data loader's batch_size",
    GradientAccumulationScheduler: "use batch_schedule of a Task",
    LearningRateFinder: "give the optimizer's lr",
    StochasticWeightAveraging: "use `ema` of the spec",
    Timer: "ranks have clocks of their own; give max_epochs or max_steps",
    WeightAveraging: "use `ema` of the spec",
}


def complaints(named: Mapping[str, Any]) -> Iterator[str]:
    """For each of these arguments of Lightning's `Trainer` that cannot be kept when nodes come and go, a sentence
    that says why, and what to do."""
    options = {name: value for name, value in named.items() if value is not None}
    many = options.get("accumulate_grad_batches", 1) != 1
    interval = options.get("val_check_interval", 1.0)
    one = ("auto", 1, "1", [0])
    refused = {
        "strategy": (options.get("strategy", "auto") != "auto", "Oakum brings the ranks and their sums"),
        "devices": (options.get("devices", "auto") not in one, "a rank has one device, and Oakum the ranks"),
        "num_nodes": (options.get("num_nodes", 1) != 1, "Oakum brings the nodes"),
        "max_epochs": (options.get("max_epochs") == -1, "give the number of epochs"),
        "max_time": ("max_time" in options, "ranks have clocks of their own; give max_epochs or max_steps"),
        "limit_train_batches": (
            options.get("limit_train_batches", 1.0) != 1.0 or isinstance(options.get("limit_train_batches"), int),
            "each sample is visited once per epoch; train on a subset of the data set",
        ),
        "overfit_batches": (options.get("overfit_batches", 0) != 0, "train on a subset of the data set"),
        "fast_dev_run": (bool(options.get("fast_dev_run")), "use `oakum try`"),
        "reload_dataloaders_every_n_epochs": (
            options.get("reload_dataloaders_every_n_epochs", 0) != 0,
            "the data set is the same in all epochs",
        ),
        "sync_batchnorm": (bool(options.get("sync_batchnorm")), "use GroupNorm or LayerNorm"),
        "val_check_interval": (
            not isinstance(interval, int | float) or (many and isinstance(interval, int)),
            "give a fraction of an epoch, or steps without accumulate_grad_batches",
        ),
    }
    for name, (is_set, advice) in refused.items():
        if is_set:
            yield f"{name}={named[name]!r} cannot be kept when nodes come and go: {advice}; leave it out"
    for callback in as_list(options.get("callbacks")):
        for kind, advice in _REFUSED_CALLBACKS.items():
            if isinstance(callback, kind):
                yield f"the callback {type(callback).__name__} cannot be kept when nodes come and go: {advice}"
        if isinstance(callback, ModelCheckpoint):
            refuse_clock(callback)


def refuse_module(module: pl.LightningModule) -> None:
    """Raise `SessionError` for a module that optimizes by hand, or that forgets or computes gradients in a way of
    its own."""
    if not module.automatic_optimization:
        raise SessionError(
            "automatic_optimization=False: a module that optimizes by hand, as with several optimizers, needs a "
            "loop in oakum.session(...), which takes several optimizers"
        )
    if is_overridden("optimizer_zero_grad", module):
        raise SessionError(
            "the module has an optimizer_zero_grad() of its own, which would forget the gradients of this rank's "
            "earlier parts: leave it out, as the session forgets gradients when a step begins"
        )
    if is_overridden("backward", module):
        raise SessionError("the module has a backward() of its own: leave it out, or use oakum.session(...)")
