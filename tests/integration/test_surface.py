"""The libraries' whole surface: each public name has its answer, and what is said to be refused is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adapters import HUGGING_FACE, regression
from cells import each
from oakum.surface import accelerate, fabric, hugging_face, lightning_trainer
from oakum.surface.tables import Surface
from oakum.surface.verdicts import Refused
from oakum_worker.errors import SessionError, TrainingWarning
from tiny_language_model import Sentences, loss_of_words, tiny_model
from training_ranks import Points

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
WHOLE = {
    "hugging_face": ("hugging-face", hugging_face.SURFACES),
    "accelerate": ("hugging-face", accelerate.SURFACES),
    "fabric": ("lightning", fabric.SURFACES),
    "lightning_trainer": ("lightning", lightning_trainer.SURFACES),
}
"""Module of tables -> what has to be installed, and the tables."""


@pytest.mark.usefixtures("states_of_threads")
@pytest.mark.parametrize(
    "surfaces",
    [pytest.param(tables, id=name, marks=pytest.mark.needs(one)) for name, (one, tables) in WHOLE.items()],
)
def test_each_public_name_of_the_library_has_its_answer(surfaces: tuple[Surface, ...], tmp_path: Path) -> None:
    """Where a new version of a library has a new argument or method, this names it."""
    faults = []
    for surface in surfaces:
        there = _attributes(tmp_path) if surface.kind == "attributes" else surface.names_of_library()
        gone = surface.table.keys() - there
        new = frozenset() if surface.kind == "overrides" else there - surface.table.keys()
        faults += [f"{surface.name} ({surface.kind}) has no {name} any more" for name in sorted(gone)]
        faults += [f"{surface.name} ({surface.kind}) has a new {name}" for name in sorted(new)]
    assert faults == []


def _attributes(folder: Path) -> frozenset[str]:
    import transformers

    trainer = transformers.Trainer(tiny_model(), HUGGING_FACE.arguments(folder), train_dataset=Sentences())
    return frozenset(name for name in vars(trainer) if not name.startswith("_"))


def refusals(*surfaces: Surface) -> list[tuple[Surface, str]]:
    return [(one, name) for one in surfaces for name, told in one.table.items() if isinstance(told, Refused)]


def told_of(name: str) -> str:
    """What a refusal's message has; most have the argument's name."""
    others = {
        "trial": "hyperparameter_search",
        "control": "should_epoch_stop",
        "plugins": "or its plugin",
        "kwargs": r"backward\(retain_graph=",
        "training_step": "Own.training_step does not call",
        "get_batch_samples": "Own.get_batch_samples does not call",
        "callbacks": "the callback Timer cannot be kept",
        "model": "automatic_optimization",
        "train_dataloaders": "the training data loader",
    }
    return others.get(name, name)


REFUSED_FIELDS = {
    **{"deepspeed": {"zero": 3}, "fsdp": True, "parallelism_config": {"tp": 2}, "fp16": True},
    **{"torch_compile": True, "auto_find_batch_size": True, "dataloader_drop_last": True, "save_strategy": "best"},
    **{"train_sampling_strategy": "group_by_length", "load_best_model_at_end": True, "push_to_hub": True},
    **{"enable_jit_checkpoint": True, "resume_from_checkpoint": "there", "num_train_epochs": 1.5},
    **{"include_num_input_tokens_seen": "all", "optim": "lomo"},
}


@pytest.mark.needs("hugging-face")
@pytest.mark.usefixtures("states_of_threads")
@each(("surface", "name"), refusals(*hugging_face.SURFACES), ids=str)
def test_what_is_said_to_be_refused_of_hugging_faces_trainer_is(
    surface: Surface, name: str, tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    from oakum.hugging_face import Trainer

    arguments = HUGGING_FACE.arguments(tmp_path, **({"max_steps": 2} if name == "train_dataset" else {}))
    if surface is hugging_face.ARGUMENTS:
        setattr(arguments, name, REFUSED_FIELDS[name])  # as some raise by themselves without the library's extras
        with pytest.raises(SessionError, match=f"{name}.* is set"):
            Trainer(tiny_model(), arguments, train_dataset=Sentences())
        return

    def train(given: dict[str, Any] | None = None, own: Any = Trainer, **named: Any) -> None:
        own(tiny_model(), arguments, **({"train_dataset": Sentences()} | named)).train(**(given or {}))

    def overriding(**methods: Any) -> None:
        train(own=type("Own", (Trainer,), methods), compute_loss_func=loss_of_words)

    class Short(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = True

    calls: dict[str, Callable[[], Any]] = {
        "resume_from_checkpoint": lambda: train({"resume_from_checkpoint": "there"}),
        "trial": lambda: train({"trial": {}}),
        "hyperparameter_search": lambda: Trainer(tiny_model(), arguments).hyperparameter_search(),
        "train_dataset": lambda: train(train_dataset=iter(())),
        "control": lambda: train(callbacks=[Short()], compute_loss_func=loss_of_words),
        "training_step": lambda: overriding(training_step=step_of_the_library),
        "get_batch_samples": lambda: overriding(get_batch_samples=lambda _, batches, *__: ([next(batches)], None)),
        **{
            name: lambda name=name: overriding(**{name: lambda *_: None})
            for name in ("get_train_dataloader", "_get_train_sampler", "_get_dataloader")
        },
    }
    with pytest.raises(SessionError, match=told_of(name)):
        calls[name]()


def step_of_the_library(trainer: Any, model: Any, inputs: Any, *_: Any) -> Any:
    loss = trainer.compute_loss(model, inputs)
    trainer.accelerator.backward(loss)
    return loss.detach()


@pytest.mark.needs("hugging-face")
@pytest.mark.usefixtures("states_of_threads")
@each(("surface", "name"), refusals(*accelerate.SURFACES), ids=str)
def test_what_is_said_to_be_refused_of_accelerate_is(surface: Surface, name: str) -> None:
    import oakum.accelerate

    accelerator = oakum.accelerate.Accelerator(cpu=True)
    # Where there is no GPU, the library itself refuses float16, before the adapter can.
    calls: dict[str, Callable[[], Any]] = {
        "mixed_precision": lambda: oakum.accelerate._refuse(SimpleNamespace(mixed_precision="fp16")),
        "save_state": lambda: accelerator.save_state("folder"),
        "load_state": lambda: accelerator.load_state("folder"),
        "kwargs": lambda: accelerator.backward(torch.zeros(1), retain_graph=True),
        "set_trigger": accelerator.set_trigger,
        "check_trigger": accelerator.check_trigger,
        "gradient_accumulation_steps": lambda: setattr(accelerator, "gradient_accumulation_steps", 2),
        "skip_first_batches": lambda: accelerator.skip_first_batches(accelerator._loop, 1),
        "lomo_backward": lambda: accelerator.lomo_backward(torch.zeros(1), 0.1),
    }
    if surface is accelerate.CONSTRUCTOR and name not in calls:
        given = {"step_scheduler_with_optimizer": False, "dynamo_backend": "inductor"}.get(name, object())
        calls[name] = lambda: oakum.accelerate.Accelerator(cpu=True, **{name: given})
    with pytest.raises(SessionError, match=told_of(name)):
        calls[name]()


@pytest.mark.needs("lightning")
@each(("surface", "name"), refusals(*fabric.SURFACES), ids=str)
def test_what_is_said_to_be_refused_of_fabric_is(surface: Surface, name: str) -> None:
    from lightning.fabric.plugins import HalfPrecision

    from oakum.lightning import Fabric

    def backward(*others: Any, **named: Any) -> None:
        Fabric(accelerator="cpu").backward(torch.zeros(1), *others, **named)

    if surface is fabric.BACKWARD:
        with pytest.raises(SessionError, match="session calls torch's backward itself"):
            backward(torch.ones(1)) if name == "args" else backward(retain_graph=True)
        return
    given = {"strategy": "ddp", "devices": 2, "num_nodes": 2, "precision": "16-mixed"}
    given["plugins"] = HalfPrecision("16-true")
    with pytest.raises(SessionError, match=told_of(name)):
        Fabric(**{"accelerator": "cpu", name: given[name]})


REFUSED_OPTIONS = {
    **{"strategy": "ddp", "devices": 2, "num_nodes": 2, "precision": "16-mixed", "max_epochs": -1},
    **{"max_time": "00:00:01:00", "limit_train_batches": 0.5, "overfit_batches": 2, "fast_dev_run": True},
    **{"reload_dataloaders_every_n_epochs": 1, "sync_batchnorm": True, "val_check_interval": "00:00:01:00"},
}


@pytest.mark.needs("lightning")
@each(("surface", "name"), refusals(*lightning_trainer.SURFACES), ids=str)
def test_what_is_said_to_be_refused_of_lightnings_trainer_is(surface: Surface, name: str) -> None:
    from lightning.pytorch.callbacks import Timer
    from lightning.pytorch.plugins import HalfPrecision

    from oakum.lightning import Trainer

    def fit(module: Any = None, **named: Any) -> None:
        loader = torch.utils.data.DataLoader(Points(), batch_size=8, shuffle=True)
        trainer = Trainer(accelerator="cpu", max_epochs=1, **QUIET)
        trainer.fit(module or regression(), **({"train_dataloaders": loader} | named))

    def changed(**attributes: Any) -> Any:
        module = regression()
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
        return module

    calls: dict[str, Callable[[], Any]] = {
        "model": lambda: fit(changed(automatic_optimization=False)),
        "automatic_optimization": lambda: fit(changed(automatic_optimization=False)),
        "optimizer_zero_grad": lambda: fit(changed(optimizer_zero_grad=lambda *_: None)),
        "backward": lambda: fit(changed(backward=lambda loss: loss.backward())),
        "train_dataloaders": lambda: fit(train_dataloaders=torch.utils.data.DataLoader(Points(), batch_size=8)),
        "ckpt_path": lambda: fit(ckpt_path="last"),
    }
    if surface is lightning_trainer.CONSTRUCTOR:
        others = {"callbacks": Timer(), "plugins": HalfPrecision("16-true")}
        option = {name: (REFUSED_OPTIONS | others)[name]}
        calls = {name: lambda: Trainer(accelerator="cpu", **QUIET, **option)}
    with pytest.raises(SessionError, match=told_of(name)):
        calls[name]()


def without(surface: Surface, name: str) -> Surface:
    """The table as if the library's argument were newer than it."""
    return replace(surface, table={one: told for one, told in surface.table.items() if one != name})


@pytest.mark.needs("hugging-face")
@pytest.mark.usefixtures("states_of_threads")
def test_an_unknown_argument_of_hugging_face_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import oakum.accelerate
    import oakum.hugging_face

    monkeypatch.setattr("oakum.hugging_face.ARGUMENTS", without(hugging_face.ARGUMENTS, "label_smoothing_factor"))
    monkeypatch.setattr("oakum.accelerate.CONSTRUCTOR", without(accelerate.CONSTRUCTOR, "rng_types"))
    given = HUGGING_FACE.arguments(tmp_path, label_smoothing_factor=0.5)
    with pytest.warns(TrainingWarning, match=r"label_smoothing_factor of transformers\.TrainingArguments"):
        oakum.hugging_face.Trainer(tiny_model(), given, train_dataset=Sentences())
    with pytest.warns(TrainingWarning, match=r"rng_types of accelerate\.Accelerator"):
        oakum.accelerate.Accelerator(cpu=True, rng_types=["torch"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        oakum.hugging_face.Trainer(tiny_model(), HUGGING_FACE.arguments(tmp_path), train_dataset=Sentences())
        oakum.accelerate.Accelerator(cpu=True, rng_types=None)


@pytest.mark.needs("lightning")
def test_an_unknown_argument_of_lightning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from oakum.lightning import Fabric, Trainer

    monkeypatch.setattr("oakum.lightning_trainer.CONSTRUCTOR", without(lightning_trainer.CONSTRUCTOR, "benchmark"))
    monkeypatch.setattr("oakum.lightning.CONSTRUCTOR", without(fabric.CONSTRUCTOR, "accelerator"))
    with pytest.warns(TrainingWarning, match=r"benchmark of lightning\.Trainer"):
        Trainer(accelerator="cpu", benchmark=True, **QUIET)
    with pytest.warns(TrainingWarning, match=r"accelerator of lightning\.Fabric"):
        Fabric(accelerator="cpu")
