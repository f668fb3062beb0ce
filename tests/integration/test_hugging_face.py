"""The `Trainer` of Hugging Face: what it promises beyond what `test_adapters` shows of every library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from adapters import HUGGING_FACE, SEED, Told, Training, weights_of, without_times
from cells import each
from oakum_worker.errors import SessionError
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
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
    uncounted = {"epoch": 0}  # the library counts an epoch's micro-batches, the adapter its steps
    for line, theirs in zip(found.logs[0], without_times(plain.state.log_history), strict=True):
        assert line | uncounted == pytest.approx(theirs | uncounted, rel=1e-5)


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
