"""A small training, written as the users of each library write it, to show what all adapters promise."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Subset

import oakum
from oakum_worker.spec import TrainerSpec
from session_ranks import Rank
from tiny_language_model import NUM_SENTENCES, Sentences, loss_of_words, tiny_model
from training_ranks import NUM_SAMPLES, Points

assert NUM_SENTENCES == NUM_SAMPLES
PER_RANK = 3
ACCUMULATED = 3
BATCH = PER_RANK * ACCUMULATED
STEPS_PER_EPOCH = -(-NUM_SAMPLES // BATCH)
SEED = 3
_VALIDATIONS = 3
"""After so many validations a loop of one's own leaves its loop where it ends early."""

Script = Callable[[Rank | None], list[torch.Tensor]]
"""What each rank runs, or plain Python (None); returns the weights."""


@dataclass(frozen=True)
class Training:
    """What a script is asked to train."""

    epochs: int = 6
    ends_early: bool = False
    """Whether the script ends training by what its validations were, as it remembers them."""


@dataclass
class Told:
    """What the ranks of a training told: numbers by the step after which they were right."""

    losses: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    """Learning rates."""
    validations: dict[int, float] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    """Of each rank that came to the end of its script, the last step."""
    logs: list[list[dict[str, float]]] = field(default_factory=list)
    """The log of each of these ranks, where the library keeps one."""
    remembered: list[list[float]] = field(default_factory=list)
    """Of each of these ranks, the validations that a loop of one's own remembers."""
    lost: int = 0
    """How often a rank was told that a step was not taken, where the library tells."""


class Library(ABC):
    """A library with an adapter, or none at all."""

    name: str
    needs: str | None
    """What has to be installed, as the mark `needs` names it."""
    runs_the_loop: bool
    """Whether the loop is the library's, so that a script hears of no lost step, and a batch has one size."""
    rel: float
    """How alike validations are that the library has rounded."""

    @abstractmethod
    def script(self, training: Training, told: Told, folder: Path) -> Script:
        """The script of a training; the library may write to the folder."""

    def prepare(self, request: pytest.FixtureRequest) -> None:  # noqa: B027  for some there is nothing to do
        """Let each thread of the test be a rank."""


def spec(**changes: Any) -> TrainerSpec:
    fields = {"name": "loop", "script": "loop.py", "global_batch": BATCH, "epochs": 6, "seed": SEED}
    return TrainerSpec.model_validate(fields | changes)


def network() -> nn.Module:
    """A network whose weights are equal at each call."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(torch.linspace(-0.5, 0.5, p.numel(), dtype=p.dtype).view_as(p) * (number + 1) / 2)
    return model


class Validations:
    """Losses of validation so far, part of a script's state."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: Any) -> None:
        self.losses = list(state["losses"])

    def add(self, model: nn.Module) -> float:
        """Validate; returns the loss."""
        points = Points()
        with torch.no_grad():
            self.losses.append(mse_loss(model(points.inputs), points.targets).item())
        return self.losses[-1]

    def end(self, training: Training) -> bool:
        return training.ends_early and len(self.losses) == _VALIDATIONS


def falling(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """A scheduler whose rates depend on its own count of steps."""
    return LambdaLR(optimizer, lambda steps: 0.99**steps)


def weights_of(*models: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for model in models for p in model.parameters()]


class OwnLoop(Library):
    """`oakum.session` around a loop: a scheduler, an average, a gradient penalty."""

    name, needs, runs_the_loop, rel = "own loop", None, False, 1e-9

    def script(self, training: Training, told: Told, folder: Path) -> Script:
        def script(rank: Rank | None) -> list[torch.Tensor]:
            model, validations = network(), Validations()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            scheduler = falling(optimizer)
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
            fields: dict[str, Any] = {"batch_size": BATCH, "epochs": training.epochs, "seed": SEED}
            fields["state"] = [scheduler, average, validations]
            with oakum.session(model, optimizer, Points(), **fields) as session:
                for inputs, targets in session:
                    inputs = inputs.clone().requires_grad_()
                    out = model(inputs)
                    if rank is not None:
                        rank.may_die()
                    (slope,) = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
                    session.backward(mse_loss(out, targets) + 0.1 * slope.square().sum(1).mean())
                    taken = session.step()
                    scheduler.step()  # also where the step was not taken, as a careless script does
                    average.update_parameters(model)
                    if not taken:
                        told.lost += 1
                        continue
                    told.losses[session.steps] = session.loss
                    told.rates[session.steps] = float(scheduler.get_last_lr()[0])
                    if session.steps % 3 == 0:
                        told.validations[session.steps] = validations.add(average)
                        if validations.end(training):
                            break
            told.ends.append(session.steps)
            told.remembered.append(validations.losses)
            return weights_of(model, average)

        return script


class Accelerated(Library):
    """A loop with an `Accelerator`: a scheduler, clipping, and validation after each epoch."""

    name, needs, runs_the_loop, rel = "Accelerate", "hugging-face", False, 1e-9

    def prepare(self, request: pytest.FixtureRequest) -> None:
        request.getfixturevalue("states_of_threads")

    def script(self, training: Training, told: Told, folder: Path) -> Script:
        from oakum.accelerate import Accelerator

        def script(rank: Rank | None) -> list[torch.Tensor]:
            accelerator = Accelerator(
                cpu=True, gradient_accumulation_steps=ACCUMULATED, epochs=training.epochs, seed=SEED
            )
            model: Any = network()
            optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
            scheduler: Any = falling(optimizer)
            validations = Validations()
            loader: Any = DataLoader(Points(), batch_size=PER_RANK, shuffle=True)
            model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
            accelerator.register_for_checkpointing(validations)
            assert len(loader) == -(-len(Points()) // PER_RANK)  # as the library counts
            for _ in accelerator.epochs():
                for inputs, targets in loader:
                    with accelerator.accumulate(model):
                        loss = mse_loss(model(inputs), targets)
                        if rank is not None:
                            rank.may_die()
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(model.parameters(), 0.5)
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                    if not accelerator.sync_gradients:
                        continue
                    if accelerator.optimizer_step_was_skipped:
                        told.lost += 1
                        continue
                    steps = accelerator._loop.open.steps
                    told.losses[steps] = accelerator._loop.open.loss
                    told.rates[steps] = float(scheduler.get_last_lr()[0])
                told.validations[accelerator._loop.open.steps] = validations.add(model)
                if validations.end(training):
                    break
            accelerator.end_training()
            told.ends.append(accelerator._loop.open.steps)
            told.remembered.append(validations.losses)
            return weights_of(model)

        return script


class Fabric(Library):
    """A loop with Lightning's `Fabric` and a `LightningModule`: a scheduler, clipping, validation after each
    epoch."""

    name, needs, runs_the_loop, rel = "Fabric", "lightning", False, 1e-9

    def script(self, training: Training, told: Told, folder: Path) -> Script:
        from oakum.lightning import Fabric

        def script(rank: Rank | None) -> list[torch.Tensor]:
            fabric = Fabric(accelerator="cpu", accumulated=ACCUMULATED, epochs=training.epochs, seed=SEED)
            module, validations = regression(), Validations()
            own = torch.optim.AdamW(module.parameters(), lr=0.01)
            scheduler = falling(own)
            model, optimizer = fabric.setup(module, own)
            loader = fabric.setup_dataloaders(DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
            fabric.keep(scheduler, validations)
            assert len(loader) == -(-len(Points()) // PER_RANK)  # as the library counts
            for _ in fabric.epochs():
                for number, batch in enumerate(loader):
                    loss = model.training_step(batch, number)
                    if rank is not None:
                        rank.may_die()
                    fabric.backward(loss)
                    if fabric.is_accumulating:
                        continue
                    fabric.clip_gradients(model, optimizer, max_norm=0.5)
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
                    if not fabric.step_was_taken:
                        told.lost += 1
                        continue
                    steps = fabric._loop.open.steps
                    told.losses[steps] = fabric._loop.open.loss
                    told.rates[steps] = float(scheduler.get_last_lr()[0])
                told.validations[fabric._loop.open.steps] = validations.add(model)
                if validations.end(training):
                    break
            fabric.end()
            told.ends.append(fabric._loop.open.steps)
            told.remembered.append(validations.losses)
            return weights_of(module)

        return script


def regression(rank: Rank | None = None, patience: int | None = None, lr: float = 0.01) -> Any:
    """A `LightningModule` as its users write it, with validation, and schedulers for each step, for each epoch and
    by the metric of validation."""
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping

    class Regression(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.network(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if rank is not None:
                rank.may_die()
            loss = mse_loss(self(batch[0]), batch[1])
            if self._trainer is not None:
                self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", mse_loss(self(batch[0]), batch[1]))

        def val_dataloader(self) -> Any:
            return DataLoader(Points(), batch_size=16)

        def configure_callbacks(self) -> Any:
            return [] if patience is None else [EarlyStopping("val_loss", patience=patience)]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=lr)
            plateau = ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.1)
            return [optimizer], [
                {"scheduler": ExponentialLR(optimizer, 0.99), "interval": "step"},
                {"scheduler": StepLR(optimizer, 2, 0.9), "interval": "epoch"},
                {"scheduler": plateau, "interval": "epoch", "monitor": "val_loss"},
            ]

    return Regression()


class LightningTrainer(Library):
    """Lightning's `Trainer`: schedulers, clipping, validation, and `EarlyStopping` where it ends early."""

    name, needs, runs_the_loop, rel = "Lightning", "lightning", True, 1e-5  # it logs in float32
    options: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
        **{"accelerator": "cpu", "num_sanity_val_steps": 0, "gradient_clip_val": 0.5, "max_epochs": 6},
    }

    def prepare(self, request: pytest.FixtureRequest) -> None:
        """Let one rank at a time ask for its data loader. Lightning replaces methods of torch's classes meanwhile,
        and ranks, which are threads here and processes elsewhere, would put them back under each other."""
        from lightning.pytorch.trainer.connectors import data_connector

        replace, lock = data_connector._replace_dunder_methods, threading.RLock()

        @contextlib.contextmanager
        def replace_alone(*given: Any) -> Iterator[None]:
            with lock, replace(*given):
                yield

        monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr(data_connector, "_replace_dunder_methods", replace_alone)

    def script(self, training: Training, told: Told, folder: Path, **options: Any) -> Script:
        from lightning.pytorch.callbacks import Callback

        from oakum.lightning import Trainer

        class Look(Callback):  # type: ignore[misc]
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
                assert trainer.global_step == trainer._loop.open.steps
                assert trainer.current_epoch == (trainer.global_step - 1) // STEPS_PER_EPOCH
                told.losses[trainer.global_step] = trainer._loop.open.loss
                told.rates[trainer.global_step] = trainer.optimizers[0].param_groups[0]["lr"]

            def on_validation_end(self, trainer: Any, module: Any) -> None:
                told.validations[trainer.global_step] = trainer.callback_metrics["val_loss"].item()

            def on_train_end(self, trainer: Any, module: Any) -> None:
                told.ends.append(trainer.global_step)

        def script(rank: Rank | None) -> list[torch.Tensor]:
            module = regression(rank, 2, lr=1.0) if training.ends_early else regression(rank)
            fields = {"accumulate_grad_batches": ACCUMULATED, "callbacks": Look(), "max_epochs": training.epochs}
            fields |= {"val_check_interval": 0.5} if training.ends_early else {}
            trainer = Trainer(**(self.options | fields | {"seed": SEED} | options))
            trainer.fit(module, DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
            return weights_of(module)

        return script


class HuggingFace(Library):
    """The `Trainer` of Hugging Face on sentences: a schedule, clipping, weight decay, the mean over the words of
    several micro-batches, evaluation, and `EarlyStoppingCallback` where it ends early."""

    name, needs, runs_the_loop, rel = "Hugging Face", "hugging-face", True, 1e-5  # it logs in float32

    def prepare(self, request: pytest.FixtureRequest) -> None:
        request.getfixturevalue("states_of_threads")

    def arguments(self, folder: Path, **changes: Any) -> Any:
        from transformers import TrainingArguments

        fields = {
            **{"output_dir": str(folder), "per_device_train_batch_size": PER_RANK, "num_train_epochs": 6},
            **{"gradient_accumulation_steps": ACCUMULATED, "learning_rate": 0.01, "weight_decay": 0.1},
            **{"lr_scheduler_type": "cosine", "warmup_steps": 5, "max_grad_norm": 0.5, "seed": SEED},
            **{"logging_steps": 3, "save_strategy": "no", "report_to": "none"},
            **{"disable_tqdm": True, "use_cpu": True},
        }
        return TrainingArguments(**(fields | changes))

    def script(self, training: Training, told: Told, folder: Path, **changes: Any) -> Script:
        from transformers import EarlyStoppingCallback, TrainerCallback

        from oakum.hugging_face import Trainer

        class Look(TrainerCallback):  # type: ignore[misc]
            trainer: Any = None

            def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
                told.losses[state.global_step] = self.trainer._session.loss
                told.rates[state.global_step] = named["lr_scheduler"].get_last_lr()[0]

            def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
                told.validations[state.global_step] = named["metrics"]["eval_loss"]

        def script(rank: Rank | None) -> list[torch.Tensor]:
            def loss(*given: Any, **named: Any) -> torch.Tensor:
                if rank is not None and trainer.model.training:
                    rank.may_die()
                return loss_of_words(*given, **named)

            fields: dict[str, Any] = {"num_train_epochs": training.epochs, "eval_strategy": "epoch"}
            model, callbacks = tiny_model(), [Look()]
            if training.ends_early:
                fields |= {"eval_strategy": "steps", "eval_steps": 3, "learning_rate": 0.5}
                fields |= {"metric_for_best_model": "loss"}
                callbacks.append(EarlyStoppingCallback(early_stopping_patience=2))
            trainer = Trainer(
                model,
                self.arguments(folder, **(fields | changes)),
                train_dataset=Sentences(),
                eval_dataset=Subset(Sentences(), range(9)),  # type: ignore[arg-type]
                compute_loss_func=loss,
                callbacks=callbacks,
            )
            callbacks[0].trainer = trainer
            trainer.train()
            told.ends.append(trainer.state.global_step)
            told.logs.append(without_times(trainer.state.log_history))
            return weights_of(model)

        return script


def without_times(log: list[dict[str, float]]) -> list[dict[str, float]]:
    """But for times, and for operations, which are counted by shares."""
    uncounted = ("runtime", "per_second", "total_flos")
    return [{k: v for k, v in line.items() if not any(word in k for word in uncounted)} for line in log]


OWN_LOOP, ACCELERATE, FABRIC = OwnLoop(), Accelerated(), Fabric()
LIGHTNING, HUGGING_FACE = LightningTrainer(), HuggingFace()
_ALL: tuple[Library, ...] = (OWN_LOOP, ACCELERATE, FABRIC, LIGHTNING, HUGGING_FACE)
LIBRARIES = [
    pytest.param(one, id=one.name, marks=[pytest.mark.needs(one.needs)] if one.needs else []) for one in _ALL
]
