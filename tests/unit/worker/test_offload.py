"""Optimizers whose state is on the host: the same as torch's, in little memory, and all ranks alike."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from cells import each
from oakum_worker.errors import GroupError
from oakum_worker.parallel.offload import OffloadedAdam, OffloadedAdamW, OffloadedSGD
from oakum_worker.profiling.live_memory import LiveMemory
from torus_ranks import in_a_world
from training_ranks import Points, build_model, in_ranks, mean_squared_error

POINTS = Points()
RULES = {
    "Adam": (Adam, OffloadedAdam, {"lr": 0.1, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "Adam, maximizing": (Adam, OffloadedAdam, {"lr": 0.1, "maximize": True}),
    "AdamW": (AdamW, OffloadedAdamW, {"lr": 0.1, "eps": 1e-3}),
    "SGD": (SGD, OffloadedSGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    "momentum": (SGD, OffloadedSGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "Nesterov": (SGD, OffloadedSGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    """Parameters of 1, 24, 7 and 12 elements; the convolution's memory order differs from the order of its
    indexes."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (2, 3, 2, 2), (7,), (3, 4)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    made[1] = made[1].to(memory_format=torch.channels_last)
    return [nn.Parameter(tensor) for tensor in made]


def fill_gradients(tensors: list[nn.Parameter], step: int) -> None:
    """Give the parameters gradients, some with the parameters' strides and some contiguous."""
    generator = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(tensors):
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = torch.empty_like(parameter).copy_(gradient) if number % 2 == step % 2 else gradient


def assert_same(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> None:
    torch.testing.assert_close([p.data for p in ours], [p.data for p in theirs], rtol=1e-14, atol=1e-14)


@each("bucket_elements", [1, 5, 11, 44, 1000])
@each(("theirs", "ours", "options"), RULES.values(), ids=RULES.keys())
def test_buckets_of_any_size_give_what_torchs_optimizer_gives(
    theirs: type[Optimizer], ours: Any, options: dict[str, Any], bucket_elements: int
) -> None:
    expected, found = parameters(), parameters()
    reference = theirs(expected, **options)
    optimizer = ours(found, bucket_elements=bucket_elements, **options)
    for step in range(4):
        fill_gradients(expected, step)
        fill_gradients(found, step)
        reference.step()
        optimizer.step()
        for group in (*reference.param_groups, *optimizer.param_groups):
            group["lr"] *= 0.9
        assert_same(found, expected)
    assert [parameter.stride() for parameter in found] == [parameter.stride() for parameter in expected]


@each(("theirs", "ours", "options"), RULES.values(), ids=RULES.keys())
def test_parameters_without_a_gradient_are_left_out_of_a_step(
    theirs: type[Optimizer], ours: Any, options: dict[str, Any]
) -> None:
    """Their step counts differ from then on, and a frozen one never has any."""
    expected, found = parameters(), parameters()
    expected[3].requires_grad_(False), found[3].requires_grad_(False)
    reference, optimizer = theirs(expected, **options), ours(found, bucket_elements=10, **options)
    for step, without in enumerate([{1}, {0, 2}, set(), {0, 1, 2}]):
        for tensors in (expected, found):
            fill_gradients(tensors, step)
            for number in without | {3}:
                tensors[number].grad = None
        reference.step()
        optimizer.step()
        assert_same(found, expected)
    assert set(optimizer.state_dict()["state"]) == set(reference.state_dict()["state"])


def test_groups_of_parameters_have_their_own_options() -> None:
    expected, found = parameters(), parameters()
    optimizers = []
    for kind, tensors in ((AdamW, expected), (OffloadedAdamW, found)):
        optimizers.append(kind([{"params": tensors[:2], "lr": 0.3}, {"params": tensors[2:]}], lr=0.1))
    extra, more = nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.ones(3).double())
    for step in range(2):
        fill_gradients([*expected, extra], step)
        fill_gradients([*found, more], step)
        for optimizer in optimizers:
            optimizer.step()
        if step == 0:  # a layer that is unfrozen later
            optimizers[0].add_param_group({"params": [extra]})
            optimizers[1].add_param_group({"params": [more]})
    assert_same([*found, more], [*expected, extra])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_follow_weights_in_float32(dtype: torch.dtype) -> None:
    found = parameters(dtype)
    masters = [nn.Parameter(parameter.detach().float()) for parameter in found]
    reference = AdamW(masters, lr=1e-3)
    optimizer = OffloadedAdamW(found, lr=1e-3, bucket_elements=6)
    for step in range(20):
        fill_gradients(found, step)
        for master, parameter in zip(masters, found, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        reference.step()
        optimizer.step()
    for master, parameter in zip(masters, found, strict=True):
        torch.testing.assert_close(optimizer.state[parameter]["master"], master.data, rtol=1e-6, atol=1e-7)
        assert torch.equal(parameter.data, optimizer.state[parameter]["master"].to(dtype))


@each("direction", ["from torch's", "to torch's"])
@each("rule", ["AdamW", "momentum"])
def test_states_of_torchs_optimizer_fit(rule: str, direction: str) -> None:
    theirs, ours, options = RULES[rule]
    kinds = (theirs, ours) if direction == "from torch's" else (ours, theirs)
    expected = parameters()
    reference = theirs(expected, **options)
    for step in range(4):
        fill_gradients(expected, step)
        reference.step()
    found = parameters()
    first = kinds[0](found, **options)
    for step in range(2):
        fill_gradients(found, step)
        first.step()
    second = kinds[1](found, **options | {"lr": 7.0})
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(2, 4):
        fill_gradients(found, step)
        second.step()
    assert_same(found, expected)


def test_weights_in_float32_survive_a_state_dict() -> None:
    found, copied = parameters(torch.bfloat16), parameters(torch.bfloat16)
    optimizer = OffloadedAdamW(found, lr=1e-4)  # steps too small for bfloat16 to show each
    fill_gradients(found, 0)
    optimizer.step()
    for ours, theirs in zip(found, copied, strict=True):
        theirs.data.copy_(ours.data)
    other = OffloadedAdamW(copied)
    other.load_state_dict(optimizer.state_dict())
    for step in range(1, 4):
        for tensors, one in ((found, optimizer), (copied, other)):
            fill_gradients(tensors, step)
            one.step()
    for ours, theirs in zip(found, copied, strict=True):
        assert torch.equal(optimizer.state[ours]["master"], other.state[theirs]["master"])
        assert other.state[theirs]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_state_of_a_fresh_optimizer_begins_anew_from_the_present_weights(dtype: torch.dtype) -> None:
    found, fresh = parameters(dtype), parameters(dtype)
    optimizer, other = OffloadedAdamW(found), OffloadedAdamW(fresh)
    for step in range(3):
        fill_gradients(found, step)
        optimizer.step()
    for ours, theirs in zip(found, fresh, strict=True):
        ours.data.copy_(theirs.data)
    optimizer.load_state_dict(OffloadedAdamW(parameters(dtype)).state_dict())
    for tensors, one in ((found, optimizer), (fresh, other)):
        fill_gradients(tensors, 9)
        one.step()
    torch.testing.assert_close(optimizer.state_dict(), other.state_dict(), rtol=0, atol=0)
    assert all(map(torch.equal, found, fresh))


def test_a_state_of_other_shapes_is_refused() -> None:
    found = parameters()
    optimizer = OffloadedAdam(found)
    fill_gradients(found, 0)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][2]["exp_avg"] = torch.zeros(8)
    with pytest.raises(ValueError, match=r"exp_avg has the shape \(8,\) in the state and its parameter \(7,\)"):
        OffloadedAdam(parameters()).load_state_dict(state)


@each("number", [0, 3])
@each("value", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_nothing(value: float, number: int) -> None:
    found = parameters()
    optimizer = OffloadedAdam(found, bucket_elements=10)
    fill_gradients(found, 0)
    optimizer.step()
    before = copy.deepcopy([found, optimizer.state_dict()])
    fill_gradients(found, 1)
    found[number].grad.view(-1)[-1] = value  # type: ignore[union-attr]
    optimizer.step()
    assert optimizer.overflowed
    torch.testing.assert_close([found, optimizer.state_dict()], before, rtol=0, atol=0)
    fill_gradients(found, 1)
    optimizer.step()
    assert not optimizer.overflowed


def test_the_closure_is_called() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = OffloadedSGD([parameter], lr=0.5)

    def closure() -> float:
        loss = parameter.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2
    assert parameter.tolist() == [0, 0]


def test_what_cannot_be_offloaded_is_explained() -> None:
    optimizer = OffloadedSGD([nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    with pytest.raises(ValueError, match=r"of shape \(3,\) cannot be offloaded: it is complex"):
        optimizer.step()
    with pytest.raises(ValueError, match="bucket_elements is 0: give at least 1"):
        OffloadedSGD([nn.Parameter(torch.ones(3))], bucket_elements=0)


@each("bucket_elements", [3, 10, 17, 1000])
def test_gradients_are_summed_over_the_ranks_in_one_all_reduce_for_four_buckets(
    bucket_elements: int,
) -> None:
    sizes: list[int] = []

    class Counting:
        def __init__(self, group: Any) -> None:
            self.group = group

        def allreduce(self, tensors: list[torch.Tensor]) -> Any:
            sizes.extend(tensor.numel() for tensor in tensors)
            return self.group.allreduce(tensors)

    original = build_model()  # 66 parameters
    whole = copy.deepcopy(original)
    reference = Adam(whole.parameters(), lr=0.1)
    for start in (0, 8):
        reference.zero_grad()
        mean_squared_error(whole, POINTS[start : start + 8]).backward()
        reference.step()

    def run(group: dist.ProcessGroup, rank: int) -> nn.Module:
        model = copy.deepcopy(original)
        optimizer = OffloadedAdam(model.parameters(), lr=0.1, bucket_elements=bucket_elements)
        optimizer.join(Counting(group))  # type: ignore[arg-type]
        for start in (0, 8):
            optimizer.zero_grad()
            own = POINTS[start : start + 5] if rank == 0 else POINTS[start + 5 : start + 8]
            (mean_squared_error(model, own) * len(own[0]) / 8).backward()
            optimizer.step()
        return model

    models = in_ranks(2, run)
    for model in models:
        torch.testing.assert_close(list(model.parameters()), list(whole.parameters()), rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
    num_sums = math.ceil(66 / (4 * bucket_elements))
    assert len(sizes) == 2 * 2 * (num_sums + 1)  # and one number that tells whether to take the step
    assert sum(sizes) == 2 * 2 * (66 + 1)


def test_a_sum_that_is_finite_is_used_also_where_its_parts_are_nearly_too_large() -> None:
    def run(group: dist.ProcessGroup, rank: int) -> tuple[bool, list[float]]:
        parameter = nn.Parameter(torch.ones(5, dtype=torch.float16))
        optimizer = OffloadedSGD([parameter], lr=0.5, bucket_elements=2)
        optimizer.join(group)
        parameter.grad = torch.tensor([1, 1, 1, 1, [49152.0, -40960.0, 0.0][rank]], dtype=torch.float16)
        optimizer.step()
        return optimizer.overflowed, parameter.tolist()

    moved = torch.tensor(1 - 0.5 * 8192).half().item()
    assert in_ranks(3, run) == [(False, [-0.5, -0.5, -0.5, -0.5, moved])] * 3


def test_gradients_that_are_elsewhere_are_found() -> None:
    """Without `zero_grad` before the first step, with one set to None, and one that only one rank has."""

    def run(group: dist.ProcessGroup, rank: int) -> list[list[float]]:
        tensors = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
        optimizer = OffloadedSGD(tensors, lr=1.0, bucket_elements=1)
        optimizer.join(group)
        for _ in range(2):
            tensors[0].grad = torch.full((2,), 1.0 + rank)
            tensors[1].grad = None
            tensors[2].grad = torch.ones(2) if rank else None
            optimizer.step()
        return [tensor.tolist() for tensor in tensors]

    assert in_ranks(2, run) == [[[-6, -6], [0, 0], [-2, -2]]] * 2


@each(
    ("dtype", "gradients"),
    [(torch.float32, [1.0, math.inf, 1.0]), (torch.float32, [1, math.nan, 1]), (torch.float16, [5e4, 4e4, -1])],
    ids=["infinite on one rank", "NaN on one rank", "infinite only as a sum"],
)
def test_a_sum_that_is_not_finite_leaves_every_parameter_on_every_rank_untouched(
    dtype: torch.dtype, gradients: list[float]
) -> None:
    def run(group: dist.ProcessGroup, rank: int) -> tuple[bool, bool, int]:
        tensors = [nn.Parameter(torch.ones(5, dtype=dtype)) for _ in range(3)]
        optimizer = OffloadedAdamW(tensors, bucket_elements=2)
        optimizer.join(group)
        optimizer.zero_grad()
        for tensor in tensors:
            tensor.grad.fill_(1.0)  # type: ignore[union-attr]
        tensors[2].grad[4] = gradients[rank]  # type: ignore[index]
        optimizer.step()
        untouched = all(torch.equal(tensor, torch.ones(5, dtype=dtype)) for tensor in tensors)
        return optimizer.overflowed, untouched, len(optimizer.state)

    assert in_ranks(3, run) == [(True, True, 0)] * 3


def test_a_lost_rank_is_a_group_error() -> None:
    class Broken(dist.Work):
        def allreduce(self, *_: Any) -> dist.Work:
            raise RuntimeError("gloo: Connection closed by peer")

    optimizer = OffloadedSGD(parameters())
    optimizer.join(Broken())  # type: ignore[arg-type]
    optimizer.zero_grad()
    with in_a_world(), pytest.raises(GroupError, match="a rank was lost in the optimizer"):
        optimizer.step()


NUM_PARAMETERS, BUCKET = 300_000, 10_000
SLACK_BYTES = 16 * 1024


def large_parameters(device: str) -> list[nn.Parameter]:
    sizes = [NUM_PARAMETERS // 2 + 1, NUM_PARAMETERS // 2 - 1]
    dtype = torch.float16
    return [nn.Parameter(torch.ones(size, dtype=dtype, device=device)) for size in sizes]


def test_a_step_needs_one_bucket_beside_parameters_and_gradients() -> None:
    """The host's weights and moments, 12 bytes for each parameter, are in the same memory here."""
    tensors = large_parameters("cpu")
    optimizer = OffloadedAdamW(tensors, bucket_elements=BUCKET)
    for _ in range(2):  # the first step has its own way to bring the state into being
        with LiveMemory() as memory:
            memory.count(tensors)
            for tensor in tensors:
                tensor.grad = torch.ones_like(tensor)
            optimizer.step()
        optimizer.zero_grad()
        device_bytes = memory.peak_bytes - 12 * NUM_PARAMETERS
        assert 4 * NUM_PARAMETERS + 16 * BUCKET <= device_bytes <= 4 * NUM_PARAMETERS + 16 * BUCKET + SLACK_BYTES
