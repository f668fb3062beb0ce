"""Losses that are totals with weights: exact over any ranks, micro-batches and engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cells import each
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.losses import Loss, loss_of, to_mean
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.step.training_loop import TrainingLoop
from pipeline_loops import train_in_turns
from total_tasks import build_token_chain, build_token_task, token_loss, token_mean
from training_ranks import build_model, build_spec, digest, in_ranks, step_together, take_turns

STEPS = 9
"""An epoch of 53 samples in batches of 8, the last of which has 5, and two more."""


def plain_losses(num_steps: int = STEPS, until: int = 53, **spec: Any) -> list[float]:
    """Losses of one process with a mean over the whole batch's tokens."""
    loop = TrainingLoop(build_token_task(until=until, loss=token_mean), build_spec(**spec))
    return [loop.step().loss for _ in range(num_steps)]


def build_loops(number: int, until: int = 53, **spec: Any) -> list[TrainingLoop]:
    return [TrainingLoop(build_token_task(until=until), build_spec(**spec)) for _ in range(number)]


@each("num_ranks", [2, 7])
@each("options", [{}, {"micro_batch": 1}, {"clip_grad_norm": 0.1}], ids=str)
def test_a_mean_over_tokens_is_that_of_one_process(num_ranks: int, options: dict[str, Any]) -> None:
    """Of seven ranks two have no sample of the epoch's last batch; and samples without a token are among them."""
    clip = {"clip_grad_norm": options["clip_grad_norm"]} if "clip_grad_norm" in options else {}
    losses = take_turns(build_loops(num_ranks, **options), STEPS)
    assert losses == pytest.approx(plain_losses(**clip), rel=1e-12)


@each("options", [{}, {"micro_batch": 3}, {"clip_grad_norm": 0.1}], ids=str)
def test_so_it_is_on_one_rank(options: dict[str, Any]) -> None:
    clip = {"clip_grad_norm": options["clip_grad_norm"]} if "clip_grad_norm" in options else {}
    loop = build_loops(1, **options)[0]
    assert [loop.step().loss for _ in range(STEPS)] == pytest.approx(plain_losses(**clip), rel=1e-12)


def test_the_mean_of_the_ranks_means_is_another_training() -> None:
    """Or the tests above would show nothing."""
    loops = [TrainingLoop(build_token_task(loss=token_mean), build_spec()) for _ in range(2)]
    assert step_together(loops, STEPS) != pytest.approx(plain_losses(), rel=1e-3)


def test_gradients_are_those_of_one_process_before_the_optimizer_sees_them() -> None:
    alone = build_loops(1)[0]
    alone.step()
    expected = [parameter.grad for parameter in alone.task.model.parameters()]
    model = build_token_task().model
    loss = token_mean(
        model, alone.task.read(alone.loss_parts.sampler.indices(type(alone.state.cursor)(), range(8)))
    )
    loss.backward()
    loops = build_loops(3)
    step_together(loops, 1)
    for found in (expected, *([p.grad for p in loop.task.model.parameters()] for loop in loops)):
        torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_where_nothing_weighs_anything_loss_and_gradient_are_zero(num_ranks: int) -> None:
    loops = build_loops(num_ranks, until=0, micro_batch=2)
    losses = step_together(loops, 2) if num_ranks > 1 else [loops[0].step().loss for _ in range(2)]
    assert losses == [0.0, 0.0]
    for loop in loops:
        assert all(not p.grad.any() for p in loop.task.model.parameters() if p.grad is not None)
        assert all(p.isfinite().all() for p in loop.task.model.parameters())


def test_ranks_end_with_the_same_bits() -> None:
    loops = build_loops(3)
    step_together(loops, STEPS)
    assert len({digest(loop) for loop in loops}) == 1


def test_scaled_losses_of_float16_come_to_the_same() -> None:
    """float16 rounds what is computed, not what is divided by."""
    losses = step_together(build_loops(3, precision="float16"), 4)
    assert losses == pytest.approx(plain_losses(4, precision="float16"), rel=2e-3)


def test_half_precision_parameters_are_divided_before_they_are_rounded() -> None:
    """The float32 sum of the ranks' gradients is divided by the 3 samples, and only the quotient becomes
    bfloat16."""

    def run(group: dist.ProcessGroup, rank: int) -> float:
        model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
        reducer = GradientReducer(model)
        reducer.join(group, 2)
        reducer.begin(1, 2)
        factor = torch.tensor([[1.0 + 2**-7], [0.5 - 2**-9]][rank], dtype=torch.bfloat16)
        reducer.backward((model.weight * factor).sum(), 1, last=True, weight=[1, 2][rank])
        reducer.finish()
        assert model.weight.grad is not None
        return model.weight.grad.item()

    exact = torch.tensor((1.0 + 2**-7 + torch.tensor(0.5 - 2**-9).bfloat16().item()) / 3).bfloat16().item()
    assert in_ranks(2, run) == [exact] * 2


@each("schedule", ["zero-bubble", "chimera"])
def test_the_stages_of_a_pipeline_divide_by_all_weights(schedule: str) -> None:
    """In two replicas of four micro-batches, some of which count nothing where the epoch ends."""
    alone = TrainingLoop(build_token_chain(), build_spec(clip_grad_norm=0.1))
    expected = [alone.step().loss for _ in range(STEPS)]
    mean = TrainingLoop(build_token_chain(), build_spec(clip_grad_norm=0.1))
    mean.task.loss = token_mean
    assert [mean.step().loss for _ in range(STEPS)] == pytest.approx(expected, rel=1e-12)
    pipeline = {"stages": 2, "schedule": schedule, "micro_batch": 1}
    losses, _ = train_in_turns(
        build_token_chain, build_spec(clip_grad_norm=0.1, parallel={"pipeline": pipeline}), 4, STEPS
    )
    assert losses == pytest.approx(expected, rel=1e-12)


def test_a_rank_that_never_had_a_sample_divides_as_the_others_do() -> None:
    """Of a batch of one sample on two ranks; weights 4 and then 0."""
    models = [build_model(), build_model()]

    def run(group: dist.ProcessGroup, rank: int) -> list[Any]:
        model, found = models[rank], []
        reducer = GradientReducer(model)
        reducer.join(group, 2)
        for weight in (4, 0):
            reducer.begin(1 - rank, 1)
            if rank == 0:
                reducer.backward(weight * model(torch.ones(1, 5).double()).sum(), 1, last=True, weight=weight)
            found += [reducer.finish().loss, *(p.grad.clone() for p in model.parameters())]
        return found

    model = build_model()
    loss = model(torch.ones(1, 5).double()).sum()
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    for found in in_ranks(2, run):
        torch.testing.assert_close(found[: len(found) // 2], [loss.item(), *gradients])
        assert found[len(found) // 2] == 0
        assert not any(gradient.any() for gradient in found[len(found) // 2 + 1 :])


def test_ranks_at_different_steps_are_told_so_also_one_that_knows_of_no_weights() -> None:
    def run(group: dist.ProcessGroup, rank: int) -> None:
        reducer = GradientReducer(build_model())
        reducer.join(group, 2)
        reducer.begin(0, 4 + rank)
        with pytest.raises(GroupError, match="not at the same step"):
            reducer.finish()

    in_ranks(2, run)


def test_a_mean_now_and_a_total_then_is_refused() -> None:
    kinds = iter([token_loss, token_mean])
    loop = TrainingLoop(build_token_task(loss=lambda model, batch: next(kinds)(model, batch)), build_spec())
    loop.step()
    with pytest.raises(TaskError, match="return the same kind for every batch"):
        loop.step()


def test_a_mean_here_and_a_total_there_is_refused_by_the_rank_that_had_the_mean() -> None:
    loops = [TrainingLoop(build_token_task(loss=loss), build_spec()) for loss in (token_loss, token_mean)]

    def run(group: dist.ProcessGroup, rank: int) -> str:
        loops[rank].join(group, rank, 2)
        with pytest.raises(TaskError) as refused:
            loops[rank].step()
        return str(refused.value)

    assert "return the same kind for every batch" in in_ranks(2, run)[1]


def test_noise_of_totals_is_refused() -> None:
    loop = build_loops(1, adaptive_batch={"largest": 32})[0]
    with pytest.raises(TaskError, match="leave out adaptive_batch"):
        loop.step()


GRADED = torch.ones((), requires_grad=True)


@each(
    ("returned", "message"),
    [
        (None, "loss returned None"),
        (2.5, "the loss is a float: return the tensor, without"),
        ((GRADED, 1, 2), r"a tuple of 3: return a mean, or a pair \(total, weight\)"),
        ((3.0, 4), "the loss is a float"),
        (torch.ones(2), r"shape \(2,\) and requires_grad=False"),
        ((GRADED, torch.ones(2)), r"weight has shape \(2,\)"),
        ((GRADED, GRADED), "requires_grad=True: return a scalar that does not depend"),
        ((GRADED, "7"), "weight is a str: return a number"),
        ((GRADED, None), "weight is a NoneType: return a number"),
    ],
)
def test_what_is_no_loss_is_refused(returned: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        loss_of(returned)


def test_a_number_or_a_tensor_is_a_weight() -> None:
    assert loss_of((GRADED, 3)) == Loss(GRADED, 3.0)
    assert loss_of(GRADED) == Loss(GRADED, None)
    weight = torch.tensor(3)
    assert loss_of((GRADED, weight)).weight is weight
    assert [loss_of((3 * GRADED, weight)).mean for weight in (4, torch.tensor(4), 0)] == [0.75, 0.75, 0.0]
    assert loss_of(3 * GRADED).mean == 3


def test_a_weight_below_zero_is_refused() -> None:
    with pytest.raises(TaskError, match="add up to -3: return what the total is to be divided by"):
        to_mean(8, -3)
