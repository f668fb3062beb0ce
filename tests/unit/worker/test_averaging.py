"""The weights' moving average in one process and among ranks that each have all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from averaged_tasks import DECAY, STEPS, build_averaged_task, build_staged_task, expected_metrics
from cells import each
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import TaskError
from oakum_worker.parallel.offload import OffloadedAdamW
from oakum_worker.parallel.pipeline.measuring import measure_chain
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.weight_average import AVERAGE
from oakum_worker.task import Task
from training_ranks import build_spec, build_task, digest, step_together

SPEC = build_spec(ema={"decay": DECAY})


def averaged_loop(build: Any = build_averaged_task) -> TrainingLoop:
    return TrainingLoop(build(), SPEC)


def metrics_of(loop: TrainingLoop, until: int = STEPS) -> dict[int, dict[str, float]]:
    found = {}
    while loop.step_count < until:
        loop.step()
        if loop.evaluations.is_due:
            found[loop.step_count] = loop.evaluations.run()
    return found


def test_it_is_torchs_own_average_bit_for_bit() -> None:
    assert metrics_of(averaged_loop()) == expected_metrics()


def test_an_evaluation_leaves_every_bit_of_the_state_as_it_was() -> None:
    loop = averaged_loop()
    loop.step()
    before = digest(loop)

    evaluated = loop.evaluations.run()

    assert digest(loop) == before
    loop.step()
    assert loop.evaluations.run() != evaluated


def test_an_evaluation_that_raises_leaves_the_state_as_it_was() -> None:
    task = build_averaged_task()

    def evaluate(model: nn.Module) -> dict[str, float]:
        raise ValueError("no held-out data")

    task.evaluate = evaluate
    loop = TrainingLoop(task, SPEC)
    loop.step()
    loop.step()
    before = digest(loop)

    with pytest.raises(ValueError, match="held-out"):
        loop.evaluations.run()

    assert digest(loop) == before


def test_the_weights_themselves_are_evaluated_where_that_is_wanted() -> None:
    loop = TrainingLoop(build_averaged_task(), build_spec(ema={"decay": DECAY, "evaluate": False}))
    plain = TrainingLoop(build_averaged_task(), build_spec())
    for _ in range(3):
        loop.step(), plain.step()

    assert loop.evaluations.run() == plain.evaluations.run()


def test_losses_are_those_without_an_average_bit_for_bit() -> None:
    loop, plain = averaged_loop(), TrainingLoop(build_averaged_task(), build_spec())

    assert [loop.step().loss for _ in range(STEPS)] == [plain.step().loss for _ in range(STEPS)]


def test_a_rank_that_joins_takes_it_up() -> None:
    loops = [averaged_loop() for _ in range(3)]
    for _ in range(3):
        loops[1].step()

    step_together(loops, STEPS - 3, share_from=1)

    expected = expected_metrics()[STEPS]
    for loop in loops:
        assert loop.evaluations.run() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_checkpoint_brings_it_back(tmp_path: Path) -> None:
    first = averaged_loop()
    metrics = metrics_of(first, until=8)
    checkpoints = DurableCheckpoints(tmp_path, keep=1)
    checkpoints.save(first.state.state_dict(), 8)

    second = averaged_loop()
    second.step()  # makes the places that the checkpoint is read into
    state = second.state.state_dict()
    newest = checkpoints.newest()
    assert newest is not None
    checkpoints.load(newest, state)
    second.state.load_state_dict(state)

    assert metrics | metrics_of(second) == expected_metrics()


class Conditional(torch.optim.Optimizer):
    """Keeps something for matrices alone, and takes any state for that."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if parameter.ndim > 1 and not state:
                state["sum"] = torch.zeros_like(parameter)
            if state:
                state["sum"] += parameter.grad
            parameter -= 0.02 * parameter.grad


@each(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
        lambda parameters: OffloadedAdamW(parameters, lr=0.1),
        Conditional,
    ],
)
def test_any_optimizer_goes_with_it(optimizer: Any) -> None:
    def build() -> Task:
        task = build_task()
        task.optimizer, task.scheduler = optimizer(task.model.parameters()), None
        return task

    loop = TrainingLoop(build(), SPEC)
    average = AveragedModel(loop.task.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for number in range(5):
        loop.step()
        average.update_parameters(loop.task.model)
        if number == 2:
            later = TrainingLoop(build(), SPEC)
            later.state.load_state_dict(loop.state.state_dict())
            loop = later
            average_module = average.module
            average = AveragedModel(loop.task.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
            average.module.load_state_dict(average_module.state_dict())
            average.n_averaged += 1

    kept = [loop.task.optimizer.state[parameter][AVERAGE] for parameter in loop.task.model.parameters()]
    for mine, expected in zip(kept, average.module.parameters(), strict=True):
        assert torch.equal(mine, expected)


def test_a_skipped_step_is_no_step_of_the_average() -> None:
    task = build_task()
    task.model.float()
    spec = build_spec(ema={"decay": DECAY}, precision="float16")
    infinite = [True]
    compute = task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = compute(model, tuple(part.float() for part in batch))
        return value * float("inf") if infinite[0] else value

    task.loss = loss
    loop = TrainingLoop(task, spec)
    loop.step()
    assert all(AVERAGE not in state for state in task.optimizer.state.values())

    infinite[0] = False
    loop.step()
    assert all(AVERAGE in task.optimizer.state[parameter] for parameter in task.model.parameters())


def test_weights_in_half_precision_are_refused() -> None:
    task = build_task()
    task.model.bfloat16()

    with pytest.raises(TaskError, match=r"ema is asked for and the model has torch.bfloat16 parameters"):
        TrainingLoop(task, SPEC)


def test_predictions_of_a_pipelines_memory_count_it() -> None:
    task = build_staged_task()
    assert task.chain is not None
    without, counted = (measure_chain(task, task.chain, [4], averages=averages) for averages in (False, True))

    for plain, layer in zip(without.layers, counted.layers, strict=True):
        assert layer.optimizer_bytes == plain.optimizer_bytes + plain.parameter_bytes


def test_all_ranks_have_the_same_average() -> None:
    loops = [averaged_loop() for _ in range(3)]

    step_together(loops, 5)

    assert len({digest(loop) for loop in loops}) == 1
