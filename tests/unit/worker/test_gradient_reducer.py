"""Gradients of the global batch's mean loss, whatever the ranks' shares."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cells import each
from oakum_worker.errors import GroupError
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.parallel.step_engine import GradientNorms, Reduced, StepVotes
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
    reducer.begin(sum(map(len, chunks)), size, lambda: StepVotes(signal))
    for chunk in chunks:
        reducer.backward(mean_squared_error(model, batch_of(chunk)), len(chunk), last=chunk is chunks[-1])
    return reducer.finish()


class Alone(dist.Work):
    """A group of two of which the other rank has no samples. What is written after it was sent is lost."""

    tensor: torch.Tensor
    sent: torch.Tensor

    def allreduce(self, tensors: list[torch.Tensor], *_: Any) -> Alone:
        work = Alone()
        work.tensor, work.sent = tensors[0], tensors[0].clone()
        return work

    def wait(self, *_: Any) -> bool:
        self.tensor.copy_(self.sent)
        return True


SHARES = {
    "alone": [[range(16)]],
    "alone in micro-batches": [[range(7), range(7, 14), range(14, 16)]],
    "even": [[range(8)], [range(8, 16)]],
    "uneven": [[range(11)], [range(11, 16)]],
    "one empty": [[range(16)], []],
    "three, one empty, one in micro-batches": [[range(1)], [], [range(1, 9), range(9, 16)]],
}


@each("bucket_bytes", [1, 200, 1 << 20], ids=["many buckets", "some buckets", "one bucket"])
@each("shares", SHARES.values(), ids=SHARES.keys())
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


@each("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_signals_of_the_ranks_come_back_summed_and_exact(dtype: torch.dtype) -> None:
    def run(group: dist.ProcessGroup, rank: int) -> Reduced:
        model = build_model().to(dtype)
        reducer = GradientReducer(model)
        reducer.join(group, 2)
        reducer.begin(0, 0, lambda: StepVotes(signal=[2**24 - 7, 6][rank]))
        return reducer.finish()

    assert [reduced.votes.signal for reduced in in_ranks(2, run)] == [2**24 - 1] * 2


@pytest.mark.parametrize(("measure_noise", "numbers"), [(False, 4), (True, 8)])
def test_what_comes_beside_the_gradients_costs_no_collective(
    measure_noise: bool, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    all_reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda t, **kw: sent.append(t.numel()) or all_reduce(t, **kw))

    def run(group: dist.ProcessGroup, rank: int) -> None:
        model = build_model()
        reducer = GradientReducer(model, measure_noise=measure_noise)
        reducer.join(group, 2)
        reduce(reducer, model, [range(4)], 8, signal=1)

    in_ranks(2, run)
    assert sent == [sum(p.numel() for p in build_model().parameters()) + numbers] * 2


@pytest.mark.parametrize("world_size", [1, 3])
def test_flags_are_summed_apart_from_signals(world_size: int) -> None:
    def run(group: dist.ProcessGroup, rank: int) -> tuple[int, int]:
        reducer = GradientReducer(build_model())
        reducer.join(group, world_size)
        reducer.begin(0, 0, lambda: StepVotes(signal=5 * (rank == 0), checkpoint=rank + 1))
        reduced = reducer.finish()
        return reduced.votes.signal, reduced.votes.checkpoint

    assert in_ranks(world_size, run) == [(5, world_size * (world_size + 1) // 2)] * world_size


def test_a_scale_is_in_the_gradient_and_not_in_the_loss() -> None:
    model = build_model()
    loss, expected = whole_batch(model, 8)
    reducer = GradientReducer(model)
    reducer.begin(8, 8)
    reducer.backward(mean_squared_error(model, batch_of(range(8))), 8, last=True, scale=1024)
    assert reducer.finish().loss == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(gradients(model), [1024 * gradient for gradient in expected])


def norms_of_parts(model: nn.Module, shares: list[list[range]], size: int) -> tuple[float, int, float]:
    """What the noise is estimated from, as torch alone computes it."""
    chunks = [chunk for share in shares for chunk in share]
    weighted = 0.0
    for chunk in chunks:
        part = copy.deepcopy(model)
        mean_squared_error(part, batch_of(chunk)).backward()
        weighted += len(chunk) / size * sum(g.square().sum().item() for g in gradients(part))
    return weighted, len(chunks), sum(g.square().sum().item() for g in whole_batch(model, size)[1])


@each("bucket_bytes", [1, 1 << 20], ids=["many buckets", "one bucket"])
@each("shares", SHARES.values(), ids=SHARES.keys())
def test_the_norms_of_all_parts_and_of_their_sum_are_measured(
    shares: list[list[range]], bucket_bytes: int
) -> None:
    original = WithUnused()
    weighted, num_parts, total = norms_of_parts(original, shares, 16)

    def run(group: dist.ProcessGroup, rank: int) -> GradientNorms | None:
        model = copy.deepcopy(original)
        reducer = GradientReducer(
            model, measure_noise=True, first_bucket_bytes=bucket_bytes, bucket_bytes=bucket_bytes
        )
        reducer.join(group, len(shares))
        return [reduce(reducer, model, shares[rank], 16).norms for _ in range(2)][-1]

    for norms in in_ranks(len(shares), run):
        assert norms == (pytest.approx(weighted, rel=1e-12), num_parts, pytest.approx(total, rel=1e-12), None)


def test_every_rank_gets_the_same_mean_of_what_the_ranks_gave_to_carry() -> None:
    given = [torch.tensor(2.0, dtype=torch.float64), None, 4.0]

    def run(group: dist.ProcessGroup, rank: int) -> float | None:
        reducer = GradientReducer(build_model(), measure_noise=True)
        reducer.join(group, 3)
        reducer.begin(0, 0, carried=given[rank])
        norms = reducer.finish().norms
        assert norms is not None
        return norms.carried

    assert in_ranks(3, run) == [3.0, 3.0, 3.0]


def test_norms_of_all_buckets_leave_with_the_last_whatever_its_type() -> None:
    model = nn.ParameterDict({"complex": torch.ones(2, dtype=torch.complex64), "real": torch.ones(3)})
    reducer = GradientReducer(model, measure_noise=True, first_bucket_bytes=1, bucket_bytes=1)
    reducer.join(Alone(), 2)  # type: ignore[arg-type]
    reducer.begin(1, 1)
    loss = model["real"].sum() + model["complex"].real.sum()
    reducer.backward(loss, 1, last=True)
    assert reducer.finish().norms == (pytest.approx(5), 1, pytest.approx(5), None)


class OneRoundedAndOneExact(nn.Module):
    """The gradient of `rounded` is the mean of the inputs; so is that of `exact`."""

    def __init__(self) -> None:
        super().__init__()
        self.rounded = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
        self.exact = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean() * (self.rounded + self.exact)


@each("world_size", [1, 2, 4])
def test_many_small_half_precision_gradients_are_not_lost_beside_a_large_one(world_size: int) -> None:
    # 1 + 255 / 512: added to 1 in bfloat16, each 1 / 512 would be rounded away.
    inputs = torch.tensor([256.0] + [0.5] * 255)

    def run(group: dist.ProcessGroup, rank: int) -> list[Any]:
        model = OneRoundedAndOneExact()
        reducer = GradientReducer(model)
        reducer.join(group, world_size)
        mine = inputs.chunk(world_size)[rank]
        for _ in range(2):
            reducer.begin(len(mine), 256)
            for number, value in enumerate(mine):
                reducer.backward(model(value).sum(), 1, last=number == len(mine) - 1)
            reducer.finish()
        assert model.rounded.grad is not None
        return [model.rounded.grad.dtype, *(gradient.item() for gradient in gradients(model))]

    assert in_ranks(world_size, run) == [[torch.bfloat16, 1.5, 1 + 255 / 512]] * world_size


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
        reducer.begin(0, 4 + rank)
        with pytest.raises(GroupError, match="not at the same step"):
            reducer.finish()

    in_ranks(2, run)


def test_a_gradient_keeps_its_parameters_memory_layout() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    reducer = GradientReducer(model)
    reducer.join(Alone(), 2)  # type: ignore[arg-type]
    reducer.begin(2, 2)
    reducer.backward(model(torch.ones(2, 3, 4, 4)).mean(), 2, last=True)
    reducer.finish()
    assert model.weight.grad is not None
    assert model.weight.grad.stride() == model.weight.stride()


def test_a_part_that_only_an_early_micro_batch_used_keeps_its_gradient() -> None:
    model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    reducer = GradientReducer(model)
    for group, world_size in ((None, 1), (Alone(), 2)):
        reducer.join(group, world_size)  # type: ignore[arg-type]
        reducer.begin(2, 2)
        reducer.backward(model[0](torch.full((1, 1), 6.0)).mean(), 1, last=False)
        reducer.backward(model[1](torch.full((1, 1), 8.0)).mean(), 1, last=True)
        reducer.finish()
        assert [gradient.item() for gradient in gradients(model)] == [3, 0.5, 4, 0.5]


def test_sparse_gradients_are_summed_as_dense_ones() -> None:
    model = nn.Embedding(4, 1, sparse=True)
    reducer = GradientReducer(model)
    reducer.join(Alone(), 2)  # type: ignore[arg-type]
    reducer.begin(2, 2)
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


def test_a_reducer_that_nobody_has_any_more_keeps_neither_group_nor_memory() -> None:
    model, group = build_model(), Alone()
    reducer = GradientReducer(model, measure_noise=True)
    reducer.join(group, 2)  # type: ignore[arg-type]
    reduce(reducer, model, [range(4)], 4)
    kept = weakref.ref(reducer)
    del reducer
    gc.collect()
    assert kept() is None
    mean_squared_error(model, batch_of(range(4))).backward()
