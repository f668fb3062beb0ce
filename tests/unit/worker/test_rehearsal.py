"""What a rehearsal finds in tasks as people write them, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

import rehearsed_tasks as tasks
from cells import each
from oakum_worker.errors import TaskError
from oakum_worker.rehearsal import rehearse, rehearsing, samples
from oakum_worker.rehearsal.no_trace import hidden_state
from oakum_worker.spec import TrainerSpec, read_spec
from oakum_worker.task import Task, load_task
from training_ranks import build_spec

PATIENTLY_S = 60.0
NUM_DRAWN = 8


def refusal(task: Task, **fields: Any) -> str:
    with pytest.raises(TaskError) as refused:
        rehearse(task, spec_of(**fields), budget_s=PATIENTLY_S)
    return str(refused.value)


def spec_of(**fields: Any) -> TrainerSpec:
    return build_spec(**{"global_batch": 16, "max_nodes": 4, **fields})


def warnings_of(task: Task, **fields: Any) -> tuple[str, ...]:
    return rehearse(task, spec_of(**fields), budget_s=PATIENTLY_S)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@each(
    "build",
    [
        lambda: tasks.padded_language_model(per_sample=True),
        lambda: tasks.padded_language_model(total_over="tokens"),
        lambda: tasks.dice(per_sample=True),
        tasks.gan_with_one_optimizer,
        tasks.cross_entropy_of,
        lambda: tasks.augmented("global torch"),
        lambda: tasks.augmented("global numpy"),
        lambda: tasks.augmented("global python"),
        lambda: tasks.counting("cached result"),
    ],
)
def test_a_right_task_passes_without_a_word(build: Callable[[], Task]) -> None:
    assert warnings_of(build()) == ()


@each(
    "build",
    [
        tasks.padded_language_model,
        lambda: tasks.padded_language_model(total_over="words"),
        tasks.contrastive,
        tasks.dice,
        lambda: tasks.cross_entropy_of(weight=torch.tensor([1.0, 2.0, 5.0, 0.5])),
    ],
)
def test_a_loss_that_is_no_mean_over_samples_is_refused_with_numbers(build: Callable[[], Task]) -> None:
    told = refusal(build())

    assert "the loss of 8 samples is " in told
    assert "parts of 3 and 5 samples, weighted by their samples, make " in told
    assert "(total, weight)" in told
    assert "exact: false" in told


def test_a_sum_is_called_a_sum() -> None:
    assert "It is the sum over the samples: take reduction='mean'" in refusal(tasks.cross_entropy_of("sum"))


def test_a_task_that_no_node_ever_splits_is_only_warned_of() -> None:
    [told] = warnings_of(tasks.contrastive(), max_nodes=1)

    assert "parts of 3 and 5 samples" in told


def test_micro_batches_split_on_a_single_node_too() -> None:
    assert "parts of 3 and 5 samples" in refusal(tasks.contrastive(), max_nodes=1, micro_batch=8)


def test_who_says_that_it_need_not_be_exact_is_warned() -> None:
    [told] = warnings_of(tasks.contrastive(), exact=False)

    assert "parts of 3 and 5 samples" in told


def test_who_knows_better_switches_it_off() -> None:
    assert warnings_of(tasks.contrastive(), rehearsal=False) == ()


@each(
    ("kind", "culprit"),
    [
        ("own torch", "(dataset.of_torch has moved on)"),
        ("own numpy", "(dataset.of_numpy has moved on)"),
        ("own python", "(dataset.of_python has moved on)"),
        ("counter", "['picture']: "),
    ],
)
def test_a_data_set_that_draws_from_what_is_its_own_is_refused(kind: str, culprit: str) -> None:
    told = refusal(tasks.augmented(kind))

    assert "the data set (Noisy) gives another sample " in told
    assert culprit in told


class ShiftingStream:
    """A stream whose order depends on how often it was opened."""

    def __init__(self) -> None:
        self.opened = 0

    def __len__(self) -> int:
        return 20

    def samples(self, epoch: int, start: int) -> Iterator[torch.Tensor]:
        self.opened += 1
        order = torch.arange(20.0).roll(self.opened)
        return iter(order[start:].unsqueeze(1))


def test_a_stream_that_gives_other_samples_from_another_start_is_refused() -> None:
    model = nn.Linear(1, 1)
    task = Task(
        model=model,
        dataset=ShiftingStream(),
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )

    assert "the data set (ShiftingStream) gives another sample 1 when its epoch is opened" in refusal(task)


def test_another_optimizers_step_is_refused_before_it_is_taken() -> None:
    task = tasks.gan_with_two_optimizers()
    before = copy.deepcopy(task.model.state_dict())

    assert "`loss` steps another optimizer (Adam)" in refusal(task)
    assert_equal(task.model.state_dict(), before)


def test_weights_that_a_forward_pass_changes_are_named_and_brought_back() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            model[0].weight.clamp_(-0.01, 0.01)
        return F.cross_entropy(model(batch[0]), batch[1])

    task = tasks.classifier(loss)
    before = copy.deepcopy(task.model.state_dict())

    assert "`loss` changes 0.weight, which the optimizer trains" in refusal(task)
    assert_equal(task.model.state_dict(), before)


def test_requirements_that_a_loss_changes_are_refused() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        model[0].weight.requires_grad_(False)
        return F.cross_entropy(model(batch[0]), batch[1])

    told = refusal(tasks.classifier(loss))

    assert "`loss` changes which parameters require gradients (0.weight)" in told
    assert "LambdaLR" in told
    assert "exact: false" not in told  # steps are looked after, too
    assert told == refusal(tasks.classifier(loss), exact=False)


@each(
    ("where", "told"),
    [
        ("attribute", "model.calls changes with each forward pass (1 and 2)"),
        ("buffer of data", "mean is set by a forward pass from the samples of this rank alone"),
        ("generator", "model.noise, a random generator of the task's own, draws in the forward pass"),
    ],
)
def test_what_a_forward_pass_keeps_on_the_model_is_refused(where: str, told: str) -> None:
    assert told in refusal(tasks.counting(where))


@pytest.mark.parametrize("where", ["list", "buffer of passes"])
def test_what_may_be_a_mere_record_is_warned_of(where: str) -> None:
    [told] = warnings_of(tasks.counting(where), micro_batch=8)

    assert "changes with each forward pass" in told


def test_counters_that_a_loss_encloses_are_seen() -> None:
    step = 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal step
        step += 1
        return F.cross_entropy(model(batch[0]), batch[1]) * min(step / 1000, 1)

    told = refusal(tasks.classifier(loss))

    assert "step changes with each forward pass (1 and 2)" in told
    assert "Task.on_step_start" in told
    assert step == 0


def test_numpys_draws_for_samples_are_refused_and_one_for_all_is_not() -> None:
    def of_samples(model: nn.Module, batch: Any) -> torch.Tensor:
        noise = torch.from_numpy(np.random.rand(len(batch[0]), 1, 1, 1)).float()
        return F.cross_entropy(model(batch[0] + noise), batch[1])

    def of_all(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0] + float(np.random.rand())), batch[1])

    assert "It draws from NumPy's or Python's generator" in refusal(tasks.classifier(of_samples))
    assert warnings_of(tasks.classifier(of_all)) == ()


def mean_of_crosses(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def convolutions(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(144, 4))


def test_batch_norm_of_a_ranks_own_samples_is_refused_unless_the_spec_says_what_to_do() -> None:
    def task(norm: nn.Module) -> Task:
        return tasks.classifier(mean_of_crosses, convolutions(norm))

    assert "the model's layer 1 is BatchNorm, which computes with the" in refusal(task(nn.BatchNorm2d(4)))
    untracked = nn.BatchNorm2d(4, track_running_stats=False).eval()
    assert "batch_norm: synchronised" in refusal(task(untracked))
    [told] = warnings_of(task(nn.BatchNorm2d(4)), exact=False)
    assert "is BatchNorm" in told
    alone: dict[str, Any] = {"max_nodes": 1, "micro_batch": 8}
    for right in (alone, *({"parallel": {"batch_norm": choice}} for choice in ("synchronised", "group"))):
        assert warnings_of(task(nn.BatchNorm2d(4)), **right) == ()
    for norm in (nn.BatchNorm2d(4).eval(), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)):
        assert warnings_of(task(norm)) == ()
        assert norm.training == (not isinstance(norm, nn.BatchNorm2d))


def test_a_model_that_is_left_in_evaluation_mode_is_warned_of() -> None:
    [told] = warnings_of(tasks.classifier(mean_of_crosses, convolutions(nn.GroupNorm(2, 4)).eval()))
    assert "call `model.train()` in the entrypoint" in told


def test_dropout_of_all_kinds_is_no_reason_to_refuse() -> None:
    model = convolutions(nn.GroupNorm(2, 4))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        mixed = batch[0] + 0.1 * torch.randn_like(batch[0])
        return F.cross_entropy(F.dropout(model(mixed), 0.3), batch[1])

    assert warnings_of(tasks.classifier(loss, model)) == ()


def test_draws_over_padding_are_not_taken_for_a_mistake() -> None:
    task = tasks.padded_language_model(per_sample=True)
    compute = task.loss

    def masked(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(len(batch), 3, batch.shape[1]).mean(1)  # numbered by channel, and then by place
        kept = torch.where(drawn < 0.4, torch.ones_like(batch), batch)
        return compute(model, torch.where(batch == 0, batch, kept))

    task.loss = masked

    assert warnings_of(task) == ()


def test_a_share_that_cannot_be_computed_is_told_of() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0].reshape(4, 2, 1, 8, 8)[:, 0]), batch[1][:4])

    told = refusal(tasks.classifier(loss))

    assert "the loss of 8 samples can be computed, and that of 2 of them raises RuntimeError: shape" in told


def test_mistakes_that_training_tells_of_are_left_to_it() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        raise ValueError("no such thing")

    assert warnings_of(tasks.classifier(loss)) == ()


def assert_equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@each("build", [tasks.padded_language_model, tasks.gan_with_one_optimizer])
@each("strict", [True, False])
def test_nothing_is_left_behind(build: Callable[[], Task], *, strict: bool) -> None:
    task = build()
    task.model.register_buffer("seen", torch.zeros(3))
    kept = {"num": 0, "texts": ["a"]}
    moving = nn.Linear(2, 2)
    task.extra_state = {"moving": moving}
    compute = task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        kept["texts"].append("b")  # type: ignore[attr-defined]
        model.seen += 1
        moving.weight.data += 1
        model.answer = 42
        return compute(model, batch)

    task.loss = loss
    before = copy.deepcopy([task.model.state_dict(), task.optimizer.state_dict(), moving.state_dict()])
    modes = [module.training for module in task.model.modules()]
    np.random.seed(1)
    random.seed(1)
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()

    try:
        rehearse(task, spec_of(max_nodes=4 if strict else 1), budget_s=PATIENTLY_S)
    except TaskError:
        assert strict

    assert_equal([task.model.state_dict(), task.optimizer.state_dict(), moving.state_dict()], before)
    assert [module.training for module in task.model.modules()] == modes
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert kept == {"num": 0, "texts": ["a"]}
    assert not hasattr(task.model, "answer")
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert (np.random.get_state()[1] == generators[2]).all()


def test_results_kept_in_a_list_are_no_state_and_large_ones_are_not_copied() -> None:
    kept: dict[str, Any] = {"all": [torch.zeros(1 << 19) for _ in range(4)]}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        kept["last"] = model(batch[0])
        return F.cross_entropy(kept["last"], batch[1])

    task = tasks.classifier(loss)
    [taken] = [t for t in hidden_state(task).take().values() if t.where == "kept"]

    assert taken.value == {"all": [(1 << 19,)] * 4}
    assert warnings_of(task) == ()


class Odd:
    """Cannot be compared with anything."""

    dtype = "odd"

    def tolist(self) -> list[float]:
        raise NotImplementedError("no list")


def test_what_it_cannot_look_at_is_told_and_lets_training_begin() -> None:
    task = tasks.cross_entropy_of()
    dataset: Any = task.dataset
    task.dataset = [(*pair, Odd()) for pair in dataset]  # type: ignore[assignment]
    task.collate = lambda samples: default_collate([sample[:2] for sample in samples])
    task.model.odd = Counter(a=1)

    assert warnings_of(task) == ()

    task.model.odd = Uncopied()
    assert ["broke off" in told for told in warnings_of(task)] == [True]


class Uncopied(list[int]):
    def __copy__(self) -> list[int]:
        raise RuntimeError("no copies")


EXAMPLES = [
    path for path in sorted(Path("examples").resolve().glob("*.yaml")) if "entrypoint:" in path.read_text()
]
"""All but scripts, which are tried out by their first steps."""


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_pass(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = read_spec(path)

    assert rehearse(load_task(spec), spec, budget_s=PATIENTLY_S) == ()


def test_generators_and_counters_of_a_data_set_are_put_back() -> None:
    task = tasks.augmented("own numpy")
    dataset: Any = task.dataset
    before = copy.deepcopy(dataset.of_numpy.bit_generator.state)

    refusal(task)

    assert dataset.of_numpy.bit_generator.state == before
    assert dataset.num_read == 0


class Slow(TensorDataset):
    num_read = 0

    def __getitem__(self, index: int) -> Any:
        type(self).num_read += 1
        time.sleep(0.05)
        return super().__getitem__(index)


def test_no_more_is_read_than_the_time_allows() -> None:
    task = tasks.cross_entropy_of()
    task.dataset = Slow(*task.dataset.tensors)  # type: ignore[union-attr]

    rehearse(task, spec_of(), budget_s=0.1)

    assert Slow.num_read <= 4


class StallingOnce(TensorDataset):
    """A data set with a clock, `now_s`, which moves only once: past every budget, while the first sample of the
    second draw is read."""

    now_s = 0.0
    num_read = 0

    def __getitem__(self, index: int) -> Any:
        type(self).num_read += 1
        if self.num_read == 2 * NUM_DRAWN + 1:  # each sample of the first draw is read twice
            type(self).now_s += 10 * PATIENTLY_S
        return super().__getitem__(index)


def test_one_sample_read_before_the_time_was_over_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.cross_entropy_of()
    task.dataset = StallingOnce(*task.dataset.tensors)  # type: ignore[union-attr]
    for module in (rehearsing, samples):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: StallingOnce.now_s))

    assert warnings_of(task) == ()
    assert StallingOnce.now_s > 0.0
