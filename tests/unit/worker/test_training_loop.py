"""The step loop, alone and with ranks that are threads."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from oakum_worker.errors import CheckpointError, GroupError, TaskError
from oakum_worker.parallel import state_broadcast
from oakum_worker.step.training_loop import StepResult, TrainingLoop
from training_ranks import (
    NUM_SAMPLES,
    Points,
    ShakenPoints,
    build_loop,
    build_spec,
    build_task,
    digest,
    digest_of,
    in_ranks,
    step_together,
)


def train(loop: TrainingLoop, num_steps: int) -> list[float]:
    return [loop.step().loss for _ in range(num_steps)]


def test_a_plain_pytorch_loop_ends_with_the_same_bits() -> None:
    points = Points()
    loop = build_loop(dataset=points)
    plain = build_task()
    for _ in range(3):
        loop.step()
        indices = points.read[-8:]
        plain.optimizer.zero_grad()
        plain.loss(plain.model, plain.read(indices)).backward()
        plain.optimizer.step()
        assert plain.scheduler is not None
        plain.scheduler.step()
    for ours, theirs in zip(loop.task.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_steps_tell_where_training_stands() -> None:
    loop = build_loop(global_batch=20)
    results = []
    while not loop.finished:
        results.append(loop.step(signal=lambda: 5))
    expected = [(1, 0, 20), (2, 0, 20), (3, 0, 13), (4, 1, 20), (5, 1, 20), (6, 1, 13)]
    assert [(result.step, result.epoch, result.samples) for result in results] == expected
    assert {result.signal for result in results} == {5}
    assert (loop.step_count, loop.progress.total_steps, loop.progress.epoch, loop.progress.samples) == (
        6,
        6,
        2,
        2 * NUM_SAMPLES,
    )


def test_a_batch_larger_than_the_data_set_is_the_whole_of_it() -> None:
    loop = build_loop(global_batch=500)
    assert loop.step() == StepResult(step=1, epoch=0, loss=pytest.approx(1.4, rel=1), samples=53, signal=0)
    assert loop.progress.epoch == 1


def test_micro_batches_give_the_same_step_as_the_whole_batch() -> None:
    whole, pieces = build_loop(), build_loop(micro_batch=3)
    assert train(pieces, 9) == pytest.approx(train(whole, 9), rel=1e-12)
    for ours, theirs in zip(whole.task.model.parameters(), pieces.task.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_the_same_run_gives_the_same_bits_with_dropout_too() -> None:
    runs = [build_loop(nn.Dropout(0.5)) for _ in range(2)]
    for run in runs:
        torch.rand(3)  # Whatever else drew random numbers before.
        train(run, 9)
    assert digest(runs[0]) == digest(runs[1])


def test_a_run_that_goes_on_in_another_process_gives_the_same_bits() -> None:
    uninterrupted, before, after = (build_loop(nn.Dropout(0.5), nn.BatchNorm1d(8)) for _ in range(3))
    train(uninterrupted, 11)
    train(before, 4)
    after.state.load_state_dict(copy.deepcopy(before.state.state_dict()))
    train(after, 7)
    assert digest(after) == digest(uninterrupted)


def test_the_last_loss_is_known_where_another_process_has_taken_that_step() -> None:
    before, after = build_loop(), build_loop()
    assert before.last_loss is None
    last = train(before, 4)[-1]
    after.state.load_state_dict(copy.deepcopy(before.state.state_dict()))
    assert after.last_loss == before.last_loss == last


def test_a_loaded_state_is_not_shared_with_its_giver() -> None:
    giver, taker = build_loop(), build_loop(seed=1)
    train(giver, 2)
    kept = digest(giver)
    taker.state.load_state_dict(giver.state.state_dict())
    train(taker, 2)
    assert digest(giver) == kept


def test_capturing_a_fresh_trainers_state_does_not_change_it() -> None:
    looked_at, left_alone = build_loop(), build_loop()
    looked_at.state.state_dict()
    assert looked_at.state.state_dict()["optimizer"]["state"] == {}
    assert train(looked_at, 3) == train(left_alone, 3)


def test_the_state_of_another_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="does not fit the task"):
        build_loop(nn.Linear(8, 8)).state.load_state_dict(build_loop().state.state_dict())


def test_a_state_that_cannot_be_carried_is_refused_before_training() -> None:
    task = build_task()
    task.scheduler = torch.optim.lr_scheduler.StepLR(task.optimizer, 1)
    task.scheduler.lambdas = [print]  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=r"scheduler\.lambdas\.0 is a builtin_function"):
        TrainingLoop(task, build_spec())


@pytest.mark.parametrize(
    "loss", [lambda m, b: m(b[0]), lambda m, b: torch.tensor(1.0)], ids=["matrix", "constant"]
)
def test_a_loss_that_cannot_be_differentiated_is_explained(loss: Any) -> None:
    task = build_task()
    task.loss = loss
    with pytest.raises(TaskError, match="return the mean over the batch's samples"):
        TrainingLoop(task, build_spec()).step()


def test_evaluation_comes_after_its_epochs_and_after_the_last() -> None:
    task = build_task()
    task.evaluate, task.evaluate_every_epochs = lambda model: {"one": 1}, 2
    loop = TrainingLoop(task, build_spec(global_batch=53, epochs=5))
    due = [(loop.step(), loop.evaluations.is_due)[1] for _ in range(5)]
    assert due == [False, True, False, True, True]


def test_evaluation_runs_in_eval_mode_without_gradients_and_leaves_modes_as_they_were() -> None:
    seen = []
    loop = build_loop(nn.Dropout(0.5))
    frozen = loop.task.model[2].eval()
    loop.task.evaluate = lambda model: seen.append((model.training, torch.is_grad_enabled())) or {"seen": 1}
    assert loop.evaluations.run() == {"seen": 1.0}
    assert seen == [(False, False)]
    assert loop.task.model.training
    assert not frozen.training


def test_metrics_that_are_no_numbers_are_refused() -> None:
    loop = build_loop()
    loop.task.evaluate = lambda model: {"accuracy": "high"}
    with pytest.raises(TaskError, match="evaluate returned"):
        loop.evaluations.run()


def test_a_newcomer_gets_every_bit_of_a_survivors_state() -> None:
    survivor, newcomer = build_loop(nn.BatchNorm1d(8)), build_loop(nn.BatchNorm1d(8), seed=9)
    train(survivor, 5)
    kept = digest(survivor)
    assert newcomer.state.state_dict()["optimizer"]["state"] == {}

    def share(group: dist.ProcessGroup, rank: int) -> None:
        loop = [newcomer, survivor][rank]
        loop.join(group, rank, 2)
        loop.state.share(source=1)

    in_ranks(2, share)
    assert digest(newcomer) == kept
    assert digest(survivor) == kept
    assert newcomer.step_count == 5


def test_a_state_of_many_types_and_more_than_one_chunk_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_broadcast, "_CHUNK_BYTES", 64)
    state = {
        "half": torch.randn(7).bfloat16(),
        "flags": torch.tensor([True, False]),
        "complex": torch.randn(20, dtype=torch.complex64),
        "empty": torch.empty(0, 3),
        "strided": torch.arange(12).reshape(3, 4).T,
        "number": 0.1,
    }

    def share(group: dist.ProcessGroup, rank: int) -> Any:
        given = state if rank == 0 else None
        return state_broadcast.broadcast_state(given, group, rank, source=0, device=torch.device("cpu"))

    received = in_ranks(3, share)[2]
    assert received.pop("number") == 0.1
    for name, tensor in received.items():
        assert tensor.dtype == state[name].dtype  # type: ignore[attr-defined]
        assert torch.equal(tensor, state[name])  # type: ignore[arg-type]


def test_the_same_size_gives_the_same_bits() -> None:
    digests = []
    for _ in range(2):
        loops = [build_loop(), build_loop()]
        step_together(loops, 9)
        digests += [digest(loop) for loop in loops]
    assert len(set(digests)) == 1


def test_a_lost_peer_leaves_the_state_of_the_last_finished_step() -> None:
    loop = build_loop(nn.BatchNorm1d(8))
    train(loop, 3)
    kept = digest(loop)

    class Broken(dist.Work):
        def allreduce(self, *_: Any) -> dist.Work:
            return self

        def wait(self, *_: Any) -> bool:
            raise RuntimeError("Connection closed by peer")

    loop.join(Broken(), 0, 2)  # type: ignore[arg-type]
    with pytest.raises(GroupError):
        loop.step()
    assert digest(loop) == kept
    untouched = build_loop(nn.BatchNorm1d(8))
    train(untouched, 3)
    loop.join(None, 0, 1)
    assert train(loop, 2) == train(untouched, 2)


def test_buffers_that_the_model_replaces_are_brought_back_as_well() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen + len(inputs)
            return inputs

    task = build_task(Counting())
    loop = TrainingLoop(task, build_spec())
    train(loop, 1)

    def fail(model: nn.Module, batch: Any) -> torch.Tensor:
        model(batch[0])
        raise ValueError("no")

    def try_step(group: dist.ProcessGroup, rank: int) -> None:
        loop.join(group, 0, 2)
        loop.task.loss = fail
        with pytest.raises(ValueError, match="no"):
            loop.step()

    in_ranks(1, try_step)
    assert task.model[2].seen.item() == 8


def test_the_last_finished_step_can_be_taken_in_the_middle_of_the_next() -> None:
    """With the buffers of the boundary, though the forward pass has moved on."""
    loop = build_loop(nn.BatchNorm1d(8))
    train(loop, 2)
    expected, held = digest(loop), []
    plain_loss = loop.task.loss

    def looking_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = plain_loss(model, batch)
        with loop.state.held_at_boundary() as state:
            held.append(digest_of(state))
        return loss

    loop.task.loss = looking_loss
    train(loop, 1)
    assert held == [expected]
    with loop.state.held_at_boundary() as state:
        assert digest_of(state) == digest(loop) != expected


def _decay(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.mul_(0.9)


def _decay_data(p: nn.Parameter) -> None:
    p.data.mul_(0.9)


def _replace_data(p: nn.Parameter) -> None:
    p.data = p.data * 0.9


DECAYS = pytest.mark.parametrize("decay", [_decay, _decay_data, _replace_data])


class Seen:
    """Counts and collects what the loss was given."""

    def __init__(self) -> None:
        self.batches, self.sums = 0, torch.zeros(5, dtype=torch.float64)

    def see(self, inputs: torch.Tensor) -> None:
        self.batches += 1
        self.sums += inputs.sum(0)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def changing_loop(
    decay: Callable[[nn.Parameter], None], inside: Callable[[], None], width: int = 8
) -> TrainingLoop:
    """A loop whose loss changes untrained parameters and the task's own state, and then calls `inside`."""
    task = build_task()
    task.model.add_module("other", nn.Linear(8, width).double().requires_grad_(False))
    task.model.forward = task.model[:3].forward
    seen = Seen()
    task.extra_state = {"seen": seen}
    plain_loss = task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.see(batch[0])
        decay(task.model.other.weight)
        inside()
        return plain_loss(model, batch)

    task.loss = loss
    return TrainingLoop(task, build_spec(micro_batch=4))


@DECAYS
def test_what_the_loss_changes_is_as_it_was_when_a_step_is_looked_at(
    decay: Callable[[nn.Parameter], None],
) -> None:
    held = []

    def look() -> None:
        with loop.state.held_at_boundary() as state:
            held.append(digest_of(state))

    loop = changing_loop(decay, look, width=4)
    for _ in range(3):
        expected = digest(loop)
        train(loop, 1)
        assert held == [expected] * 2  # once in each micro-batch
        held.clear()


@DECAYS
def test_what_the_loss_changes_is_as_it_was_when_a_step_is_broken_off(
    decay: Callable[[nn.Parameter], None],
) -> None:
    failing: list[bool] = []

    def fail() -> None:
        if failing and failing.pop():
            raise GroupError("a rank was lost")

    loop, untouched = changing_loop(decay, fail, width=4), changing_loop(decay, lambda: None, width=4)
    train(loop, 2), train(untouched, 2)
    for _ in range(2):
        failing[:] = [True, False]  # in the step's second micro-batch
        with pytest.raises(GroupError):
            loop.step()
        assert digest(loop) == digest(untouched)
    assert train(loop, 2) == train(untouched, 2)
    assert digest(loop) == digest(untouched)


@pytest.mark.parametrize("decay", [_decay, _replace_data])
def test_a_frozen_backbone_is_copied_only_once_it_is_seen_to_change(decay: Callable[[nn.Parameter], None]) -> None:
    """It is larger than what is trained; only the first step that changes it cannot be left in its middle."""
    held, decays = [], [lambda p: None, decay, decay]

    def look() -> None:
        try:
            with loop.state.held_at_boundary() as state:
                held.append(digest_of(state))
        except TaskError as error:
            held.append(str(error))

    loop = changing_loop(lambda p: decays[loop.step_count](p), look, width=99)
    expected = []
    for _ in decays:
        expected += [digest(loop)] * 2
        train(loop, 1)
        assert set(loop.state._recorded.model()) == ({"other.weight"} if loop.step_count > 1 else set())
    expected[2:4] = ["other.weight, which is not trained, changes in this step for the first time"] * 2
    assert held == expected


def test_when_a_step_began_is_seen_while_it_lasts() -> None:
    loop = build_loop()
    seen = []
    plain_loss = loop.task.loss

    def looking_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(loop.clock.computing_since_s)
        return plain_loss(model, batch)

    loop.task.loss = looking_loss
    before_s = time.monotonic()
    train(loop, 1)
    assert before_s <= seen[0] <= time.monotonic()
    assert loop.clock.computing_since_s is None


def test_dropout_and_augmentation_do_not_depend_on_what_is_computed_at_once() -> None:
    expected = train(build_loop(nn.Dropout(0.5), dataset=ShakenPoints()), 6)
    pieces = build_loop(nn.Dropout(0.5), dataset=ShakenPoints(), micro_batch=3)
    assert train(pieces, 6) == pytest.approx(expected, rel=1e-12)
    for other in (build_loop(nn.Dropout(0.5)), build_loop(dataset=ShakenPoints())):
        assert train(other, 6) != pytest.approx(expected, rel=1e-3)  # both do matter


def test_labels_are_smoothed_in_training_alone() -> None:
    smoothed = build_classification(label_smoothing=0.2)
    plain = build_classification()
    explicit = build_classification(smoothing=0.2)
    assert train(smoothed, 3) == pytest.approx(train(explicit, 3), rel=1e-12)
    assert train(plain, 1) != pytest.approx(train(build_classification(label_smoothing=0.2), 1), rel=1e-3)
    assert smoothed.evaluations.run() == pytest.approx(explicit.evaluations.run(), rel=1e-12)


def build_classification(smoothing: float = 0.0, **changes: Any) -> TrainingLoop:
    task = build_task()
    task.loss = lambda model, batch: cross_entropy(model(batch[0]), batch[1].argmax(1), label_smoothing=smoothing)
    points = Points()
    task.evaluate = lambda model: {"loss": cross_entropy(model(points.inputs), points.targets.argmax(1)).item()}
    return TrainingLoop(task, build_spec(**changes))


def test_the_tasks_own_state_travels_with_the_trainers() -> None:
    def averaged() -> TrainingLoop:
        task = build_task()
        average = Average(task.model)
        task.extra_state = {"average": average}
        task.optimizer.register_step_post_hook(lambda *_: average.update())
        return TrainingLoop(task, build_spec())

    uninterrupted, before, after = averaged(), averaged(), averaged()
    train(uninterrupted, 5)
    train(before, 2)
    after.state.load_state_dict(copy.deepcopy(before.state.state_dict()))
    train(after, 3)
    assert digest(after) == digest(uninterrupted)


class Average:
    """A moving average of the weights."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self) -> None:
        for name, p in self._model.named_parameters():
            self._weights[name].lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return self._weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self._weights[name].copy_(value)


def test_a_schedule_of_batches_is_kept_to_across_a_resume() -> None:
    schedule = {"epochs": 3, "global_batch": 8, "batch_schedule": [(1, 16), (2, 32)]}
    whole = build_loop(**schedule)
    sizes = []
    while not whole.finished:
        sizes.append(whole.step().samples)
    assert sizes == [8] * 6 + [5] + [16] * 3 + [5] + [32, 21]
    first, second = build_loop(**schedule), build_loop(**schedule)
    for _ in range(8):
        first.step()
    second.state.load_state_dict(copy.deepcopy(first.state.state_dict()))
    while not second.finished:
        second.step()
    assert digest(second) == digest(whole)
    assert whole.progress.total_steps == whole.step_count == len(sizes)
