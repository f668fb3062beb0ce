"""A backward pass in two parts: the same gradients, and nothing is computed in both."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from cells import each
from oakum_worker.parallel.pipeline.split_backward import first_part

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
        return 2 * values * weight * gradients[0], (values.square() * gradients[0]).sum((0, 1))


class Halves(torch.autograd.Function):
    """One node of two outputs."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.save_for_backward(values, weight)
        return values * weight, values - weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        values, weight = ctx.saved_tensors
        return gradients[0] * weight + gradients[1], (gradients[0] * values - gradients[1]).sum((0, 1))


class Own(nn.Module):
    """Uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((_WIDTH,), 2.0, dtype=torch.float64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        one, other = Halves.apply(Square.apply(values, self.weight), self.weight)
        return one.tanh() + other.square()


class Checkpointed(nn.Module):
    """Recomputes its forward pass during backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(linear(5), nn.Tanh(), linear(6))

    def forward(self, values: torch.Tensor) -> Any:
        return checkpoint(self.inner, values, use_reentrant=False)


class Hooked(nn.Module):
    """Has hooks on the linear products. Samples are flattened, so that the hooked node is the product and no
    view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = linear(13), linear(14)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        made = self.linear(values.flatten(0, 1))
        made.register_hook(lambda gradient: 2 * gradient)
        made = made.tanh()
        if made.grad_fn is not None:
            made.grad_fn.register_prehook(lambda gradients: (gradients[0].clamp(-0.5, 0.5),))
        other = self.other(made)
        if other.grad_fn is not None:
            other.grad_fn.register_prehook(lambda gradients: (gradients[0] / 3,))
        return other


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


MAKERS: list[Callable[[], nn.Module]] = [
    Tied,
    Beside,
    Own,
    Checkpointed,
    Hooked,
    Branches,
    normalised,
    attention,
    frozen,
]


def outputs_of(model: nn.Module, given: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(outputs that require gradients, random gradients for them)."""
    made = model(given)
    outputs = [one for one in (made if isinstance(made, tuple) else (made,)) if one.requires_grad]
    generator = torch.Generator().manual_seed(2)
    return outputs, [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in outputs]


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


@each("make", MAKERS)
def test_the_two_parts_make_the_gradients_of_a_whole_backward_pass(make: Callable[[], nn.Module]) -> None:
    model, given = make(), inputs()
    torch.autograd.backward(*outputs_of(model, given))
    expected = [weight.grad for weight in trained(model)]
    for weight in trained(model):
        weight.grad = None
    again = inputs()
    gradients, rest = first_part(*outputs_of(model, again), [again], trained(model))
    torch.testing.assert_close(gradients, (given.grad,), rtol=0, atol=1e-14)
    assert [again.grad, *(weight.grad for weight in trained(model))] == [None] * (1 + len(expected))
    rest.run()
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
    first_part(*outputs_of(model, given), [given], list(model.parameters()))[1].run()
    torch.testing.assert_close([weight.grad for weight in model.parameters()], expected, rtol=0, atol=1e-14)


def test_a_loss_needs_no_gradient() -> None:
    model, given = linear(1), inputs()
    gradients, rest = first_part([model(given).sum()], None, [given], list(model.parameters()))
    rest.run()
    torch.testing.assert_close(gradients[0], model.weight.sum(0).expand_as(given), rtol=0, atol=1e-14)
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
    made, rests = outputs_of(model, given), []
    first = products(lambda: rests.append(first_part(*made, [given], weights)[1]))
    second = products(rests[0].run)
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
    rest = first_part([made], [torch.ones_like(made)], [given], list(model.parameters()))[1]
    there = weakref.ref(kept.pop())
    assert there() is not None
    del made
    assert there() is None
    rest.run()


class Counted(nn.Module):
    """Tells how often it is computed, and how often its way back is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(1)
        self.forwards = self.backwards = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        made = self.linear(values.tanh())
        if made.requires_grad:
            made.register_hook(self._count)
        return made

    def _count(self, gradient: torch.Tensor) -> None:
        self.backwards += 1


def test_a_weight_at_many_depths_is_reached_in_one_pass() -> None:
    layer, given = Counted(), inputs()
    outputs, seeds = outputs_of(nn.Sequential(*[layer] * 6), given)
    rest = first_part(outputs, seeds, [given], list(layer.parameters()))[1]
    assert layer.backwards == 6
    rest.run()
    assert layer.backwards == 6 + 5  # The last layer's product is where it starts.


def test_a_layer_that_computes_itself_again_does_so_once_for_each_part() -> None:
    inner, given = nn.Sequential(Counted(), linear(2), linear(3)), inputs()
    output = checkpoint(inner, given, use_reentrant=False)
    assert isinstance(output, torch.Tensor)
    rest = first_part([output], [torch.ones_like(output)], [given], list(inner.parameters()))[1]
    rest.run()
    assert inner[0].forwards == 3


def test_gradients_that_have_been_handed_on_do_not_change_with_the_next_micro_batch() -> None:
    """Where views alone lie between a weight and what arrives, torch makes that memory the weight's gradient."""
    position = nn.Parameter(torch.zeros(3, _WIDTH, dtype=torch.float64))
    handed, rests = [], []
    for number in range(2):
        given = inputs()[:1].detach().requires_grad_()
        seed = torch.full_like(given, number + 1.0)
        (gradient,), rest = first_part([given + position[None]], [seed], [given], [position])
        handed += [gradient, seed]
        rests.append(rest)
    for rest in rests:
        rest.run()
    assert [tensor.unique().tolist() for tensor in handed] == [[1.0], [1.0], [2.0], [2.0]]
    assert position.grad is not None
    assert position.grad.unique().tolist() == [3.0]


def test_weights_that_are_not_trained_any_more_are_left_out() -> None:
    model, given = nn.Sequential(linear(1), linear(2)), inputs()
    weights = list(model.parameters())
    model[1].requires_grad_(False)
    first_part(*outputs_of(model, given), [given], weights)[1].run()
    assert [weight.grad is None for weight in weights] == [False, False, True, True]


def test_a_gradient_that_was_given_does_not_become_a_weights_own() -> None:
    position, given = nn.Parameter(torch.zeros(_WIDTH, dtype=torch.float64)), inputs()
    seeds = [torch.ones_like(given), torch.ones(1, _WIDTH, dtype=torch.float64)]
    first_part([2 * given, position[None]], seeds, [given], [position])[1].run()
    assert position.grad is not None
    position.grad += 1.0
    assert [seed.unique().tolist() for seed in seeds] == [[1.0], [1.0]]


def test_inputs_that_no_output_needs_have_gradients_of_zero() -> None:
    model, given = linear(1), inputs()
    gradients, rest = first_part([model.weight.sum()], None, [given], list(model.parameters()))
    rest.run()
    assert [gradient.tolist() for gradient in gradients] == [torch.zeros_like(given).tolist()]
    assert model.weight.grad is not None
    assert model.weight.grad.unique().tolist() == [1.0]
