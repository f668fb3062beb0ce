"""A backward pass in two parts: the same gradients, and nothing is computed in both."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from oakum_worker.parallel.pipeline.split_backward import SplitBackward

_WIDTH = 4


class Tied(nn.Module):
    """One weight at two depths, where one of its uses leads to the other, and beside others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = linear(1), linear(2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        made = self.other(self.linear(values).tanh())
        return self.linear(made) + made.tanh() @ self.other.weight.T


class Beside(nn.Module):
    """One of its outputs depends on weights alone, one of them on no input that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = linear(3), linear(4)
        self.bias = nn.Parameter(torch.ones(_WIDTH, dtype=torch.float64))

    def forward(self, values: torch.Tensor) -> Any:
        positions = torch.eye(_WIDTH, dtype=torch.float64)
        return self.linear(values) + self.bias, self.other(self.linear(positions)).tanh(), self.bias


class Square(torch.autograd.Function):
    """A user's own function: all of its work at once."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        return values.square() * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        values, weight = ctx.saved_tensors
        return 2 * values * weight * gradients[0], (values.square() * gradients[0]).sum(0)


class Own(nn.Module):
    """Uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((_WIDTH,), 2.0, dtype=torch.float64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return Square.apply(values, self.weight)


class Checkpointed(nn.Module):
    """Computes itself again within backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(linear(5), nn.Tanh(), linear(6))

    def forward(self, values: torch.Tensor) -> Any:
        return checkpoint(self.inner, values, use_reentrant=False)


class Branches(nn.Module):
    """Outputs of which one passes its input on, and one does not need it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = linear(7), linear(8)

    def forward(self, values: torch.Tensor) -> Any:
        return values, values.detach() @ self.linear.weight, values.detach()


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(_WIDTH, _WIDTH).double()


def normalised() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(linear(9)), nn.LayerNorm(_WIDTH).double(), nn.Tanh())


def attention() -> nn.Module:
    torch.manual_seed(10)
    return nn.TransformerEncoderLayer(_WIDTH, 2, 8, dropout=0.0, batch_first=True).double()


def frozen() -> nn.Module:
    return nn.Sequential(linear(11).requires_grad_(False), linear(12), nn.ReLU(inplace=True))


def inputs() -> torch.Tensor:
    values = torch.randn(2, 3, _WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return values.requires_grad_()


MAKERS: list[Callable[[], nn.Module]] = [Tied, Beside, Own, Checkpointed, Branches, normalised, attention, frozen]


def outputs_of(model: nn.Module, given: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Those that require gradients, and gradients for them."""
    made = model(given)
    outputs = [one for one in (made if isinstance(made, tuple) else (made,)) if one.requires_grad]
    generator = torch.Generator().manual_seed(2)
    return outputs, [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in outputs]


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


@pytest.mark.parametrize("make", MAKERS)
def test_the_two_parts_make_the_gradients_of_a_whole_backward_pass(make: Callable[[], nn.Module]) -> None:
    model, given = make(), inputs()
    torch.autograd.backward(*outputs_of(model, given))
    expected = [weight.grad for weight in trained(model)]
    for weight in trained(model):
        weight.grad = None
    again = inputs()
    split = SplitBackward(*outputs_of(model, again), [again], trained(model))
    torch.testing.assert_close(split.gradients, (given.grad,), rtol=0, atol=1e-14)
    assert [again.grad, *(weight.grad for weight in trained(model))] == [None] * (1 + len(expected))
    split.weights()
    assert again.grad is None
    made = [weight.grad for weight in trained(model)]
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_gradients_are_added_to_those_that_there_are() -> None:
    model, given = nn.Sequential(linear(1), linear(2)), inputs()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.autograd.backward(*outputs_of(model, given))
    expected = [weight.grad for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    SplitBackward(*outputs_of(model, given), [given], list(model.parameters())).weights()
    torch.testing.assert_close([weight.grad for weight in model.parameters()], expected, rtol=0, atol=1e-14)


def test_a_loss_needs_no_gradient() -> None:
    model, given = linear(1), inputs()
    split = SplitBackward([model(given).sum()], None, [given], list(model.parameters()))
    split.weights()
    torch.testing.assert_close(split.gradients[0], model.weight.sum(0).expand_as(given), rtol=0, atol=1e-14)
    assert model.bias.grad is not None
    assert model.bias.grad.tolist() == [6.0] * _WIDTH


def products(work: Callable[[], object]) -> int:
    """Products of matrices in it."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return sum(
        event.count for event in seen.key_averages() if event.key in ("aten::mm", "aten::bmm", "aten::addmm")
    )


def test_both_parts_compute_no_more_than_a_whole_backward_pass_does() -> None:
    model, given = nn.Sequential(*(linear(seed) for seed in range(4))), inputs()
    weights = list(model.parameters())
    whole = products(lambda: torch.autograd.backward(*outputs_of(model, given)))
    forward = products(lambda: outputs_of(model, given))
    made, splits = outputs_of(model, given), []
    first = products(lambda: splits.append(SplitBackward(*made, [given], weights)))
    second = products(splits[0].weights)
    assert (first, second) == (4, 4)
    assert first + second == whole - forward


def test_what_lies_above_the_first_branch_is_let_go_of_with_the_outputs() -> None:
    given, model = inputs(), linear(1)
    kept: list[Any] = []

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            kept.append(torch.ones(1))
            ctx.kept = kept[-1]
            return values.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return gradients[0]

    made = Marked.apply(model(given))
    split = SplitBackward([made], [torch.ones_like(made)], [given], list(model.parameters()))
    there = weakref.ref(kept.pop())
    assert there() is not None
    del made
    assert there() is None
    split.weights()
