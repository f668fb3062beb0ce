"""The `Trainer` of Hugging Face: what it promises beyond what `test_adapters` shows of every library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, Sampler

from adapters import (
    HUGGING_FACE,
    SEED,
    STEPS_PER_EPOCH,
    Told,
    Training,
    spec,
    weights_of,
    without_times,
)
from cells import each
from oakum_worker.errors import SessionError, TrainingWarning
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from session_ranks import Plan, Stage
from tiny_language_model import NUM_SENTENCES, Sentences, loss_of_words, tiny_model

pytestmark = [pytest.mark.needs("hugging-face"), pytest.mark.usefixtures("states_of_threads")]


def test_alone_it_trains_as_the_library_does_in_the_same_order(tmp_path: Path) -> None:
    """Schedule, clipping, weight decay and the mean over words of several micro-batches are the library's."""
    import transformers

    class Order(Sampler[int]):
        epoch = 0

        def __len__(self) -> int:
            return NUM_SENTENCES

        def __iter__(self) -> Any:
            cursor = Cursor(epoch=self.epoch)
            self.epoch += 1
            return iter(ElasticSampler(NUM_SENTENCES, NUM_SENTENCES, SEED).indices(cursor, range(NUM_SENTENCES)))

    class Plain(transformers.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Order()

    found, model = Told(), tiny_model()
    weights = HUGGING_FACE.script(Training(epochs=3), found, tmp_path, eval_strategy="no")(None)
    arguments = HUGGING_FACE.arguments(tmp_path, num_train_epochs=3)
    plain = Plain(model, arguments, train_dataset=Sentences(), compute_loss_func=loss_of_words)
    plain.train()
    for one, other in zip(weights, weights_of(model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for line, theirs in zip(found.logs[0], without_times(plain.state.log_history), strict=True):
        assert line == pytest.approx(theirs, rel=1e-5)


def test_processes_that_read_change_nothing(tmp_path: Path) -> None:
    weights, others = (
        HUGGING_FACE.script(Training(epochs=1), Told(), tmp_path, dataloader_num_workers=workers)(None)
        for workers in (0, 1)
    )
    for one, other in zip(weights, others, strict=True):
        assert torch.equal(one, other)


@each(
    "changes",
    [
        {"fp16": True},
        {"dataloader_drop_last": True},
        {"auto_find_batch_size": True},
        {"num_train_epochs": 1.5},
        {"torch_compile": True},
        {"train_sampling_strategy": "group_by_length"},
        {"enable_jit_checkpoint": True},
        {"resume_from_checkpoint": "there"},
        {"save_strategy": "best", "metric_for_best_model": "loss"},
        {"optim": "lomo"},
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(tmp_path: Path, changes: Any) -> None:
    from oakum.hugging_face import Trainer

    with pytest.raises(SessionError, match=rf"{next(iter(changes))}(='best')? is set"):
        Trainer(tiny_model(), HUGGING_FACE.arguments(tmp_path, **changes), train_dataset=Sentences())


@each("option", ["fsdp", "deepspeed", "parallelism_config"])
def test_ways_of_sharding_are_refused(tmp_path: Path, option: str) -> None:
    from oakum.hugging_face import Trainer

    given = HUGGING_FACE.arguments(tmp_path)
    setattr(given, option, {"zero": 3})
    with pytest.raises(SessionError, match=f"{option} is set"):
        Trainer(tiny_model(), given, train_dataset=Sentences())


def test_a_collator_whose_batch_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    from transformers import default_data_collator

    from oakum.hugging_face import Trainer

    trainer = Trainer(
        tiny_model(),
        HUGGING_FACE.arguments(tmp_path),
        lambda samples: {**default_data_collator(samples), "position_ids": torch.arange(10)[None]},
        Sentences(),
    )
    with pytest.raises(SessionError, match="9 samples cannot be computed in parts, because position_ids"):
        trainer.train()


def _trainer(folder: Path, callback: Any = None, kind: Any = None, **changes: Any) -> Any:
    """A trainer of one epoch."""
    from oakum.hugging_face import Trainer

    arguments = HUGGING_FACE.arguments(folder, **({"num_train_epochs": 1} | changes))
    named = {"train_dataset": Sentences(), "compute_loss_func": loss_of_words}
    return (kind or Trainer)(tiny_model(), arguments, callbacks=[] if callback is None else [callback], **named)


def _callback(**hooks: Any) -> Any:
    """A callback with these methods: hook -> what is called with the library's state and control."""
    from transformers import TrainerCallback

    class Look(TrainerCallback):  # type: ignore[misc]
        pass

    for name, call in hooks.items():
        setattr(Look, name, lambda self, args, state, control, _call=call, **_: _call(state, control))
    return Look()


def test_a_callback_may_read_the_training_set_while_training_runs(tmp_path: Path) -> None:
    read: list[int] = []

    def look(state: Any, control: Any) -> None:
        read.append(sum(len(batch["labels"]) for batch in trainer.get_train_dataloader()))

    trainer = _trainer(tmp_path, _callback(on_step_end=look))
    trainer.train()
    assert read == [NUM_SENTENCES] * STEPS_PER_EPOCH
    assert trainer.state.global_step == STEPS_PER_EPOCH


def test_an_epoch_that_a_callback_cuts_short_is_refused(tmp_path: Path) -> None:
    def stop(state: Any, control: Any) -> None:
        control.should_epoch_stop = state.global_step == 2

    with pytest.raises(SessionError, match="should_epoch_stop was set within an epoch"):
        _trainer(tmp_path, _callback(on_step_end=stop), num_train_epochs=2).train()


def test_overriding_methods_that_do_not_call_the_adapters_are_refused(tmp_path: Path) -> None:
    """The gradients would be clipped before they are summed, and a rank that joins would count otherwise."""
    from oakum.hugging_face import Trainer

    class Steps(Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *_: Any) -> torch.Tensor:
            loss: torch.Tensor = self.compute_loss(model, inputs)
            self.accelerator.backward(loss)
            return loss.detach()

    class Batches(Trainer):  # type: ignore[misc]
        def get_batch_samples(self, epoch_iterator: Any, *_: Any) -> Any:
            return [next(epoch_iterator)], None

    with pytest.raises(SessionError, match=r"Steps.training_step does not call super\(\)"):
        _trainer(tmp_path, kind=Steps).train()
    with pytest.raises(SessionError, match=r"Batches.get_batch_samples does not call super\(\)"):
        _trainer(tmp_path, kind=Batches).train()


def test_a_loss_that_is_said_not_to_be_scaled_is_a_mean_over_samples_as_in_the_library(tmp_path: Path) -> None:
    """Also for a model whose tokens the library would count."""
    import transformers

    from oakum.hugging_face import Trainer

    def trained(base: Any, size: int, accumulated: int) -> list[torch.Tensor]:
        class Own(base):  # type: ignore[misc]
            loss_is_scaled_for_ga = False

            def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
                logits = model(input_ids=inputs["input_ids"]).logits
                return logits.square().mean()

        trainer = _trainer(
            tmp_path,
            kind=Own,
            max_steps=2,
            warmup_steps=0,
            optim="sgd",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulated,
        )
        trainer.train()
        return weights_of(trainer.model)

    whole = trained(transformers.Trainer, NUM_SENTENCES, 1)
    for one, other in zip(trained(Trainer, 7, 8), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_number_that_a_subclass_changes_in_each_step_is_told_of(tmp_path: Path) -> None:
    from oakum.hugging_face import Trainer

    class Annealing(Trainer):
        beta = 1.0

        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            self.beta *= 0.9
            return super().compute_loss(*arguments, **named)

    trainer = _trainer(tmp_path, kind=Annealing, max_steps=2)
    trainer.beta = 1.0
    with pytest.warns(TrainingWarning, match="the trainer's `beta` changed in the first step"):
        trainer.train()


def test_one_rank_opens_the_run_of_a_tracker_and_a_rank_that_joins_does_not_evaluate_at_the_start(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Where the first rank leaves, the next one opens one."""
    from transformers import TrainerCallback

    HUGGING_FACE.prepare(request)
    runs: list[str] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        """As the library's own work."""

        def __init__(self, name: str) -> None:
            self.name, self._initialized, self.has_run = name, False, False

        def setup(self, state: Any) -> None:
            self._initialized = True
            if state.is_world_process_zero:
                runs.append(self.name)
                self.has_run = True

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.setup(state)

        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not self._initialized:
                self.setup(state)
            assert self.has_run or not state.is_world_process_zero

    def script(rank: Any) -> list[float]:
        trainer = _trainer(tmp_path, Tracker(rank.name), num_train_epochs=2, eval_on_start=True, logging_steps=1)
        trainer.eval_dataset = [Sentences()[0]]
        trainer.train()
        return [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]

    results = Plan([Stage(("a", "b"), 3), Stage(("b", "c"))], spec(epochs=2), script).run()
    assert runs == ["a", "b"]
    assert results["b"] == results["c"]
    assert len(results["c"]) == 1


def test_a_data_set_without_an_order_is_refused(tmp_path: Path) -> None:
    from oakum.hugging_face import Trainer

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(Sentences())

    for dataset in (Stream(), iter(())):
        with pytest.raises(SessionError, match=r"SampleStream"):
            Trainer(tiny_model(), HUGGING_FACE.arguments(tmp_path, max_steps=2), train_dataset=dataset).train()


@each("name", ["_get_train_sampler", "get_train_dataloader"])
def test_methods_of_a_subclass_that_deal_samples_are_refused_by_name(tmp_path: Path, name: str) -> None:
    from oakum.hugging_face import Trainer

    subclass = type("Balanced", (Trainer,), {name: lambda self, *_: None})
    with pytest.raises(SessionError, match=rf"Balanced has a {name} of its own, and Oakum deals the samples"):
        subclass(tiny_model(), HUGGING_FACE.arguments(tmp_path), train_dataset=Sentences())
