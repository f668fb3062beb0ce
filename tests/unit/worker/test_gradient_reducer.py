"""Gradients of the global batch's mean loss, whatever the ranks' shares."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import GroupError
from oakum_worker.parallel.data import GradientReducer, Reduced
from training_ranks import Points, build_model, in_ranks, mean_squared_error

POINTS = Points()


class WithUnused(nn.Module):
    """A model of which one part takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.used = build_model()
        self.unused = nn.Linear(3, 3).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for parameter in model.parameters()
    ]


def batch_of(positions: range) -> Any:
    return POINTS.inputs[positions.start : positions.stop], POINTS.targets[positions.start : positions.stop]


def whole_batch(model: nn.Module, size: int) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients that torch alone computes."""
    model = copy.deepcopy(model)
    loss = mean_squared_error(model, batch_of(range(size)))
    loss.backward()
    return loss.item(), gradients(model)


def reduce(reducer: GradientReducer, model: nn.Module, chunks: list[range], size: int, signal: int = 0) -> Reduced:
    reducer.begin(sum(map(len, chunks)), size, signal)
    for chunk in chunks:
        reducer.backward(mean_squared_error(model, batch_of(chunk)), len(chunk), last=chunk is chunks[-1])
    return reducer.finish()


SHARES = {
    "alone": [[range(16)]],
    "alone in micro-batches": [[range(7), range(7, 14), range(14, 16)]],
    "even": [[range(8)], [range(8, 16)]],
    "uneven": [[range(11)], [range(11, 16)]],
    "one empty": [[range(16)], []],
    "three, one empty, one in micro-batches": [[range(1)], [], [range(1, 9), range(9, 16)]],
}


@pytest.mark.parametrize("bucket_bytes", [1, 200, 1 << 20], ids=["many buckets", "some buckets", "one bucket"])
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
def test_the_gradient_is_that_of_the_whole_batch(shares: list[list[range]], bucket_bytes: int) -> None:
    original = WithUnused()
    expected_loss, expected = whole_batch(original, 16)

    def run(group: dist.ProcessGroup, rank: int) -> tuple[float, list[torch.Tensor]]:
        model = copy.deepcopy(original)
        reducer = GradientReducer(model, first_bucket_bytes=bucket_bytes, bucket_bytes=bucket_bytes)
        reducer.join(group, len(shares))
        for _ in range(2):  # Nothing of the step before may be left in the second.
            reduced = reduce(reducer, model, shares[rank], 16)
        return reduced.loss, gradients(model)

    for loss, found in in_ranks(len(shares), run):
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_signals_of_the_ranks_come_back_summed_and_exact(dtype: torch.dtype) -> None:
    def run(group: dist.ProcessGroup, rank: int) -> Reduced:
        model = build_model().to(dtype)
        reducer = GradientReducer(model)
        reducer.join(group, 2)
        reducer.begin(0, 0, signal=[2**24 - 7, 6][rank])
        return reducer.finish()

    assert [reduced.signal for reduced in in_ranks(2, run)] == [2**24 - 1] * 2


def test_loss_and_signal_cost_no_collective_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    all_reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda t, **kw: sent.append(t.numel()) or all_reduce(t, **kw))

    def run(group: dist.ProcessGroup, rank: int) -> None:
        model = build_model()
        reducer = GradientReducer(model)
        reducer.join(group, 2)
        reduce(reducer, model, [range(4)], 8, signal=1)

    in_ranks(2, run)
    assert sent == [sum(p.numel() for p in build_model().parameters()) + 3] * 2


def test_buckets_are_sent_while_backward_still_runs() -> None:
    events: list[str] = []

    class Recording(dist.Work):
        def allreduce(self, *_: Any) -> Recording:
            events.append("sent")
            return self

        def wait(self, *_: Any) -> bool:
            return True

    model = build_model()
    model[0].weight.register_hook(lambda _: events.append("first layer's gradient"))
    reducer = GradientReducer(model, first_bucket_bytes=1, bucket_bytes=1)
    reducer.join(Recording(), 2)  # type: ignore[arg-type]
    reduce(reducer, model, [range(4), range(4, 8)], 8)
    # One bucket for each parameter, last layer first, and none during the first micro-batch.
    assert events == ["first layer's gradient", "sent", "sent", "sent", "first layer's gradient", "sent"]


def test_ranks_that_are_not_at_the_same_step_are_told_so() -> None:
    def run(group: dist.ProcessGroup, rank: int) -> None:
        reducer = GradientReducer(build_model())
        reducer.join(group, 2)
        reducer.begin(0, 4 + rank, 0)
        with pytest.raises(GroupError, match="not at the same step"):
            reducer.finish()

    in_ranks(2, run)


class Alone(dist.Work):
    """A group of two of which the other rank has no samples."""

    def allreduce(self, *_: Any) -> Alone:
        return self

    def wait(self, *_: Any) -> bool:
        return True


def test_a_gradient_keeps_its_parameters_memory_layout() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    reducer = GradientReducer(model)
    reducer.join(Alone(), 2)  # type: ignore[arg-type]
    reducer.begin(2, 2, 0)
    reducer.backward(model(torch.ones(2, 3, 4, 4)).mean(), 2, last=True)
    reducer.finish()
    assert model.weight.grad is not None
    assert model.weight.grad.stride() == model.weight.stride()


def test_a_part_that_only_an_early_micro_batch_used_keeps_its_gradient() -> None:
    model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    reducer = GradientReducer(model)
    for group, world_size in ((None, 1), (Alone(), 2)):
        reducer.join(group, world_size)  # type: ignore[arg-type]
        reducer.begin(2, 2, 0)
        reducer.backward(model[0](torch.full((1, 1), 6.0)).mean(), 1, last=False)
        reducer.backward(model[1](torch.full((1, 1), 8.0)).mean(), 1, last=True)
        reducer.finish()
        assert [gradient.item() for gradient in gradients(model)] == [3, 0.5, 4, 0.5]


def test_sparse_gradients_are_summed_as_dense_ones() -> None:
    model = nn.Embedding(4, 1, sparse=True)
    reducer = GradientReducer(model)
    reducer.join(Alone(), 2)  # type: ignore[arg-type]
    reducer.begin(2, 2, 0)
    reducer.backward(model(torch.tensor([1, 1])).mean(), 2, last=True)
    reducer.finish()
    assert gradients(model)[0].flatten().tolist() == [0, 1, 0, 0]


def test_a_dead_group_is_neither_waited_for_nor_able_to_write_to_the_gradients() -> None:
    class NeverEnds(dist.Work):
        def allreduce(self, tensors: list[torch.Tensor], *_: Any) -> NeverEnds:
            self.written = tensors[0]
            return self

        def wait(self, *_: Any) -> bool:
            raise RuntimeError("Connection closed by peer")

    model = build_model()
    _, expected = whole_batch(model, 8)
    group = NeverEnds()
    reducer = GradientReducer(model, first_bucket_bytes=1, bucket_bytes=1)
    reducer.join(group, 2)  # type: ignore[arg-type]
    with pytest.raises(GroupError, match="Connection closed"):
        reduce(reducer, model, [range(8)], 8)
    reducer.join(None, 1)
    reduce(reducer, model, [range(8)], 8)
    group.written.fill_(float("nan"))
    torch.testing.assert_close(gradients(model), expected)


def test_a_group_that_breaks_within_backward_raises_a_group_error() -> None:
    class Broken(dist.Work):
        def allreduce(self, *_: Any) -> dist.Work:
            raise RuntimeError("Connection reset by peer")

    model = build_model()
    reducer = GradientReducer(model)
    reducer.join(Broken(), 2)  # type: ignore[arg-type]
    with pytest.raises(GroupError, match="Connection reset"):
        reduce(reducer, model, [range(8)], 8)
