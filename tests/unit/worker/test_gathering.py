"""Losses that compare samples with each other: of the gathered batch they are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from cells import each
from gathering_tasks import (
    build_blind_task,
    build_gathering_task,
    contrastive_loss,
    contrastive_loss_alone,
    ratio_alone,
    ratio_loss,
    total_loss,
    total_loss_alone,
)
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.gathering import Gathering, gather_batch, own_rows
from oakum_worker.parallel import waiting
from oakum_worker.parallel.chunks import equal_chunks, share_of
from oakum_worker.parallel.lost_peers import LostInPasses
from oakum_worker.rehearsal import rehearse
from oakum_worker.step.training_loop import TrainingLoop
from pipeline_ranks import meeting_at
from training_ranks import build_spec, digest, in_ranks, step_together, take_turns

STEPS = 9
"""An epoch of 53 samples in batches of 8, the last of which has 5, and two more."""
LOSSES = {
    "contrastive": (contrastive_loss, contrastive_loss_alone),
    "of the whole batch": (ratio_loss, ratio_alone),
    "a total": (total_loss, total_loss_alone),
}


def alone(loss: Any, num_steps: int = STEPS, **spec: Any) -> list[float]:
    loop = TrainingLoop(build_gathering_task(loss, gathers=False), build_spec(**spec))
    return [loop.step().loss for _ in range(num_steps)]


def loops_of(number: int, loss: Any = contrastive_loss, **spec: Any) -> list[TrainingLoop]:
    return [TrainingLoop(build_gathering_task(loss), build_spec(**spec)) for _ in range(number)]


@pytest.fixture(autouse=True)
def _without_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads share torch's generator, and so draw nothing."""
    monkeypatch.setattr("gathering_tasks.nn.Dropout", lambda p: torch.nn.Identity())


@each("num_ranks", [1, 2, 7])
@each(("gathered", "whole"), LOSSES.values(), ids=LOSSES)
def test_losses_are_those_of_one_process(gathered: Any, whole: Any, num_ranks: int) -> None:
    """Seven ranks have unequal shares, and of the epoch's last batch two have none."""
    loops, expected = loops_of(num_ranks, gathered, clip_grad_norm=0.5), alone(whole, clip_grad_norm=0.5)
    losses = take_turns(loops, STEPS) if num_ranks > 1 else [loops[0].step().loss for _ in range(STEPS)]
    assert losses == pytest.approx(expected, rel=1e-12)
    assert len({digest(loop) for loop in loops}) == 1


def test_without_the_others_samples_it_is_another_training() -> None:
    """Or the test above would show nothing."""
    loops = [TrainingLoop(build_blind_task(), build_spec()) for _ in range(2)]
    assert step_together(loops, STEPS) != pytest.approx(alone(contrastive_loss_alone), rel=1e-2)


def test_gradients_are_those_of_one_process() -> None:
    whole = TrainingLoop(build_gathering_task(contrastive_loss_alone, gathers=False), build_spec())
    whole.step()
    loops = loops_of(3)
    step_together(loops, 1)
    expected = [p.grad for p in whole.task.model.parameters()]
    for loop in loops:
        torch.testing.assert_close(
            [p.grad for p in loop.task.model.parameters()], expected, rtol=1e-12, atol=1e-15
        )


def test_ranks_come_and_go() -> None:
    loops = loops_of(4)
    losses = step_together(loops[:2], 3)
    losses += step_together([loops[1], loops[2], loops[3]], 4, share_from=0)
    losses += step_together([loops[3], loops[0]], 2, share_from=0)
    assert losses == pytest.approx(alone(contrastive_loss_alone), rel=1e-12)


def test_over_connections_of_its_own_too() -> None:
    loops, store = loops_of(3), dist.HashStore()

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        loops[rank].join(group, rank, 3, subgroups=meeting_at(store, rank))
        assert loops[rank]._gathering._group is not group
        return [loops[rank].step().loss for _ in range(STEPS)]

    for losses in in_ranks(3, run):
        assert losses == pytest.approx(alone(contrastive_loss_alone), rel=1e-12)


@each(
    "values",
    [
        torch.arange(5),
        torch.arange(10).view(5, 2) % 3 == 0,
        torch.arange(5).to(torch.bfloat16),
        torch.arange(10).view(5, 2).to(torch.complex64) * 1j,
        torch.arange(20.0).view(5, 4).T.contiguous().T,
        torch.zeros(5, 0),
    ],
    ids=lambda values: f"{values.dtype} {tuple(values.shape)}",
)
@each("num_ranks", [2, 7])
def test_rows_come_in_the_order_of_the_samples_whatever_they_are(values: torch.Tensor, num_ranks: int) -> None:
    def run(group: dist.ProcessGroup, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        [chunk] = equal_chunks(5, rank, num_ranks, None)
        own = values[chunk.positions.start : chunk.positions.stop]
        gathering = Gathering(build_gathering_task(), build_spec())
        gathering.join(group, rank, None)
        with gathering.of(5, chunk):
            return gather_batch(own), own_rows(own)

    for rank, (gathered, rows) in enumerate(in_ranks(num_ranks, run)):
        assert torch.equal(gathered, values)
        assert rows.tolist() == (list(share_of(5, rank, num_ranks)) or [0])


def test_gradients_of_half_precision_rows_are_added_up_without_rounding_in_between() -> None:
    """256 and seven ones: bfloat16 would round each sum to 256."""

    def run(group: dist.ProcessGroup, rank: int) -> float:
        [chunk] = equal_chunks(8, rank, 8, None)
        gathering = Gathering(build_gathering_task(), build_spec())
        gathering.join(group, rank, None)
        own = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
        with gathering.of(8, chunk):
            gathered = gather_batch(own)
        (gathered * (1.0 if rank else 256.0)).sum().backward()
        assert own.grad is not None
        assert own.grad.dtype == torch.bfloat16
        return own.grad.item()

    assert in_ranks(8, run) == [264.0] * 8


def test_outside_a_step_the_batch_is_what_is_there() -> None:
    values = torch.randn(4, 3)
    assert gather_batch(values) is values
    assert own_rows(values).tolist() == [0, 1, 2, 3]


@each(
    ("options", "message"),
    [
        ({"micro_batch": 4}, "micro_batch: 4: samples that are compared .* recompute activations"),
        ({"micro_batch": 8, "batch_schedule": [[1, 12]]}, "micro_batch: 8"),
        ({"adaptive_batch": {"largest": 16}}, "adaptive_batch"),
        ({"parallel": {"pipeline": {}}}, "parallel.pipeline"),
    ],
    ids=str,
)
def test_a_share_that_is_computed_in_parts_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"the task gathers batches and the spec has {message}"):
        TrainingLoop(build_gathering_task(), build_spec(**options))


def test_a_micro_batch_of_the_whole_batch_is_none() -> None:
    assert step_together(loops_of(2, micro_batch=8), 2) == pytest.approx(alone(contrastive_loss_alone, 2))


def test_who_gathers_without_saying_so_is_told_at_the_first_step() -> None:
    loop = TrainingLoop(build_gathering_task(gathers=False), build_spec())
    with pytest.raises(TaskError, match=r"return Task\(..., gathers=True\)"):
        loop.step()


def test_rows_that_are_no_samples_are_refused() -> None:
    loop = loops_of(1, lambda model, batch: gather_batch(model(batch)[0].repeat(2, 1)).mean())[0]
    with pytest.raises(TaskError, match=r"shape \(16, 4\) is to be gathered and 8 samples are computed"):
        loop.step()


def test_rows_of_other_shapes_on_other_ranks_are_refused_on_all() -> None:
    def ragged(model: Any, batch: Any) -> torch.Tensor:
        ones, _ = model(batch)
        return gather_batch(ones.repeat(1, len(ones))).mean()

    loops = loops_of(3, ragged)

    def run(group: dist.ProcessGroup, rank: int) -> str:
        loops[rank].join(group, rank, 3)
        with pytest.raises(TaskError) as refused:
            loops[rank].step()
        return str(refused.value)

    assert ["shapes or types ((12,), (8,)): pad them" in told for told in in_ranks(3, run)] == [True] * 3


def test_a_lost_rank_is_a_lost_group_and_the_step_is_not_taken() -> None:
    loops = loops_of(2)

    def run(group: dist.ProcessGroup, rank: int) -> None:
        if rank:
            return  # and with the last reference to it its connections
        loops[0].join(group, 0, 2)
        with pytest.raises(GroupError, match="a rank was lost while a batch was gathered"):
            loops[0].step()

    in_ranks(2, run)
    assert loops[0].step_count == 0


def test_what_is_found_wrong_with_aborted_collectives_is_a_lost_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, where they give anything: shapes that differ, for one."""

    def void(model: Any, batch: Any) -> Any:
        raise TaskError("ranks gather rows of different shapes")

    loop = loops_of(1, void)[0]
    monkeypatch.setattr(loop.ranks, "device", torch.device("cuda"))
    monkeypatch.setattr(loop.ranks, "group", object())
    with pytest.raises(TaskError, match="different shapes"):
        loop.step()
    monkeypatch.setattr(waiting._CONNECTIONS, "are_cut", lambda: True)
    with pytest.raises(GroupError, match="ended the generation during a step"):
        loop.step()


def test_a_rehearsal_does_not_compare_parts_of_what_is_never_computed_in_parts() -> None:
    assert rehearse(build_gathering_task(), build_spec(max_nodes=4), budget_s=60) == ()
    with pytest.raises(TaskError, match="gather_batch has them"):
        rehearse(build_blind_task(), build_spec(max_nodes=4), budget_s=60)


def test_passes_that_cannot_be_ended_go_on_with_the_rows_of_this_rank_when_another_is_lost() -> None:
    """As the body of a script's loop does: what it computes is thrown away where the step would be taken."""
    gathering, lost = Gathering(build_gathering_task(), build_spec()), LostInPasses()

    def run(group: dist.ProcessGroup, rank: int) -> None:
        if rank:
            return  # and with the last reference to it its connections
        gathering.join(group, 0, None)
        values = torch.arange(6.0).view(3, 2).requires_grad_()
        with gathering.by_hand(6, equal_chunks(6, 0, 2, None)[0], lost) as share:
            rows = gather_batch(values)
            (rows.square().sum() + gather_batch(values).sum()).backward()
        assert (share.was_gathered, rows.shape) == (True, (6, 2))
        torch.testing.assert_close(values.grad, 2 * values.detach() + 1)

    in_ranks(2, run)
    assert "a rank was lost while a batch was gathered" in str(lost.error)
