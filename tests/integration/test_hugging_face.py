"""The Hugging Face `Trainer` on ranks that come, leave and are killed: it ends as it does alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import HOST, RankHost
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from session_ranks import Plan, Rank, Stage, random_stages
from tiny_language_model import NUM_SENTENCES, Sentences, loss_of_words, tiny_model

pytestmark = [pytest.mark.needs("hugging-face"), pytest.mark.usefixtures("states_of_threads")]
EPOCHS = 9
STEPS_PER_EPOCH = -(-NUM_SENTENCES // 8)


def spec(**changes: Any) -> TrainerSpec:
    fields = {"name": "hf", "script": "hf.py", "global_batch": 8, "epochs": EPOCHS, "seed": 42}
    return TrainerSpec.model_validate(fields | changes)


def arguments(folder: Path, **changes: Any) -> Any:
    from transformers import TrainingArguments

    fields = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": EPOCHS,
        "learning_rate": 0.01,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "logging_steps": 3,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**(fields | changes))


class Record:
    """What the ranks of a trainer told."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.histories: list[list[dict[str, float]]] = []
        """The log of each rank that came to the end."""
        self.lost = 0

    @property
    def history(self) -> list[dict[str, float]]:
        """The log of the rank that came to the end last."""
        return self.histories[-1]


def fine_tuning(folder: Path, record: Record, **changes: Any) -> Any:
    """A script that trains the tiny model with the adapter's `Trainer`; returns its weights."""
    from oakum.hugging_face import Trainer

    class Recording(Trainer):
        def training_step(self, *given: Any) -> torch.Tensor:
            loss = super().training_step(*given)
            record.losses[self.state.global_step + 1] = self._session.loss
            return loss

    def script(rank: Rank | None) -> Any:
        def loss(*given: Any, **named: Any) -> torch.Tensor:
            if rank is not None and trainer.model.training:
                rank.may_die()
            return loss_of_words(*given, **named)

        model = tiny_model()
        trainer = Recording(
            model,
            arguments(folder, **changes),
            train_dataset=Sentences(),
            eval_dataset=torch.utils.data.Subset(Sentences(), range(9)),
            compute_loss_func=loss,
        )
        trainer.train()
        record.histories.append(trainer.state.log_history)
        return [p.detach().clone() for p in model.parameters()]

    return script


def alone(script: Any) -> Any:
    """What the script returns under plain Python."""
    return script(None)


def without_times(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if "runtime" not in k and "per_second" not in k} for line in history]


def assert_alike(history: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    """But for times, and for operations, which are counted by shares."""
    for line, other in zip(without_times(expected), without_times(history), strict=True):
        assert {**other, "total_flos": 0} == pytest.approx({**line, "total_flos": 0}, rel=1e-5)


def test_the_trainer_ends_alike_through_random_disturbances(tmp_path: Path) -> None:
    changes = {"eval_strategy": "epoch"}
    expected, found = Record(), Record()
    weights = alone(fine_tuning(tmp_path, expected, **changes))
    stages = random_stages(20, seed=5)
    results = Plan(stages, spec(), fine_tuning(tmp_path, found, **changes)).run()
    assert sum(stage.victim is not None for stage in stages) >= 6
    assert len(expected.losses) == EPOCHS * STEPS_PER_EPOCH
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    for name in stages[-1].members:
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert len(expected.history) == EPOCHS * STEPS_PER_EPOCH // 3 + EPOCHS + 1
    assert_alike(found.history, expected.history)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="inner", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH - 1, id="last", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH, id="first"),
    ],
)
def test_a_step_that_one_rank_alone_loses_is_not_taken_twice(tmp_path: Path, step: int) -> None:
    """The others have taken it, at the end of an epoch with what follows there, and the rank goes on with them."""
    changes = {"eval_strategy": "epoch", "num_train_epochs": 3}
    expected, found = Record(), Record()
    weights = alone(fine_tuning(tmp_path, expected, **changes))
    stages = [Stage(("a", "b", "c"), step, loser="b"), Stage(("c", "b"), 4, loser="c"), Stage(("b", "c"))]
    results = Plan(stages, spec(epochs=3), fine_tuning(tmp_path, found, **changes)).run()
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    for history in found.histories:
        assert_alike(history, expected.history)
    for name in ("b", "c"):
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


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
            return iter(ElasticSampler(NUM_SENTENCES, NUM_SENTENCES, 42).indices(cursor, range(NUM_SENTENCES)))

    class Plain(transformers.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Order()

    found = Record()
    weights = alone(fine_tuning(tmp_path, found))
    model = tiny_model()
    plain = Plain(model, arguments(tmp_path), train_dataset=Sentences(), compute_loss_func=loss_of_words)
    plain.train()
    for one, other in zip(weights, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)
    ours, theirs = without_times(found.history), without_times(plain.state.log_history)
    uncounted = {"total_flos": 0, "epoch": 0}  # the library counts an epoch's micro-batches, the adapter its steps
    for line, other in zip(ours, theirs, strict=True):
        assert {**line, **uncounted} == pytest.approx({**other, **uncounted}, rel=1e-5)


def test_processes_that_read_change_nothing(tmp_path: Path) -> None:
    weights = alone(fine_tuning(tmp_path, Record(), num_train_epochs=1))
    others = alone(fine_tuning(tmp_path, Record(), num_train_epochs=1, dataloader_num_workers=1))
    for one, other in zip(weights, others, strict=True):
        assert torch.equal(one, other)


def test_early_stopping_ends_training_on_all_ranks_after_the_step_where_it_does_alone(tmp_path: Path) -> None:
    from transformers import EarlyStoppingCallback

    from oakum.hugging_face import Trainer

    ended: list[int] = []

    def script(rank: Rank | None) -> None:
        def loss(*given: Any, **named: Any) -> torch.Tensor:
            if rank is not None and trainer.model.training:
                rank.may_die()
            return loss_of_words(*given, **named)

        changes = {"learning_rate": 0.5, "eval_strategy": "steps", "eval_steps": 3}
        trainer = Trainer(
            tiny_model(),
            arguments(tmp_path, metric_for_best_model="loss", **changes),
            train_dataset=Sentences(),
            eval_dataset=Sentences(),
            compute_loss_func=loss,
            callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
        )
        trainer.train()
        ended.append(trainer.state.global_step)

    alone(script)
    stages = [Stage(("a", "b"), 4), Stage(("b", "c"), 3, "b"), Stage(("c", "d"), 3), Stage(("d", "e"))]
    Plan(stages, spec(), script).run()
    assert ended[0] < EPOCHS * STEPS_PER_EPOCH
    assert ended == [ended[0]] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fp16": True}, "fp16 is set"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last is set"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is set"),
        ({"num_train_epochs": 1.5}, "num_train_epochs is set"),
        ({"torch_compile": True}, "torch_compile is set"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy is set"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint is set"),
        ({"resume_from_checkpoint": "there"}, "resume_from_checkpoint is set"),
        ({"save_strategy": "best", "metric_for_best_model": "loss"}, "save_strategy='best' is set"),
        ({"optim": "lomo"}, "optim is set"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    from oakum.hugging_face import Trainer

    with pytest.raises(SessionError, match=message):
        Trainer(tiny_model(), arguments(tmp_path, **changes), train_dataset=Sentences())


@pytest.mark.parametrize("option", ["fsdp", "deepspeed", "parallelism_config"])
def test_ways_of_sharding_are_refused(tmp_path: Path, option: str) -> None:
    from oakum.hugging_face import Trainer

    given = arguments(tmp_path)
    setattr(given, option, {"zero": 3})
    with pytest.raises(SessionError, match=f"{option} is set"):
        Trainer(tiny_model(), given, train_dataset=Sentences())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch": 16}, "batch_size=8, and the trainer's spec has global_batch: 16"),
        ({"epochs": 2}, f"epochs={EPOCHS}, and the trainer's spec has epochs: 2"),
        ({"batch_schedule": [[1, 16]]}, "batch_schedule"),
    ],
)
def test_a_spec_of_another_training_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    from oakum_worker.step.turns import turns_alone

    token = HOST.set(RankHost(spec(**changes), turns_alone, lambda: None))
    try:
        with pytest.raises(SessionError, match=message):
            fine_tuning(tmp_path, Record())(None)
    finally:
        HOST.reset(token)


def test_a_collator_whose_batch_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    from transformers import default_data_collator

    from oakum.hugging_face import Trainer

    trainer = Trainer(
        tiny_model(),
        arguments(tmp_path),
        lambda samples: {**default_data_collator(samples), "position_ids": torch.arange(10)[None]},
        Sentences(),
    )
    with pytest.raises(SessionError, match="8 samples cannot be computed 2 at once, because position_ids"):
        trainer.train()
