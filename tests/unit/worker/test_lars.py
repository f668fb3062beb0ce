"""LARS against its formula."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from cells import each
from oakum_worker.errors import TaskError
from oakum_worker.spec_options import LarsSpec
from oakum_worker.step.lars import TrustRatios

ETA = 0.01


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()


def fill_gradients(model: nn.Module, step: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def by_formula(model: nn.Module, num_steps: int, lr: float, momentum: float, decay: float, sign: int = 1) -> None:
    """Algorithm 1 of arXiv:1708.03888 with equation 6; plain SGD for biases and norms."""
    velocities = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for step in range(num_steps):
        fill_gradients(model, step)
        for name, w in model.named_parameters():
            assert w.grad is not None
            g = sign * w.grad
            local = ETA * w.norm() / (g.norm() + decay * w.norm()) if w.ndim > 1 else 1.0
            velocities[name] = momentum * velocities[name] + lr * local * (g + decay * w)
            w.data -= velocities[name].detach()


def by_trust_ratios(model: nn.Module, num_steps: int, clip: bool = False, **options: Any) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(model.parameters(), **options)
    ratios = TrustRatios(optimizer, LarsSpec(trust_coefficient=ETA, clip=clip))
    for step in range(num_steps):
        fill_gradients(model, step)
        with ratios.applied():
            optimizer.step()
    return optimizer


def assert_equal(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-12, atol=1e-12)


@each("decay", [0.0, 0.1])
@each("momentum", [0.0, 0.9])
def test_the_steps_are_those_of_the_formula(momentum: float, decay: float) -> None:
    ours, theirs = build_model(), build_model()
    by_trust_ratios(ours, 5, lr=0.5, momentum=momentum, weight_decay=decay)
    by_formula(theirs, 5, lr=0.5, momentum=momentum, decay=decay)
    assert_equal(ours, theirs)


def test_maximizing_is_minimizing_with_the_gradients_turned_around() -> None:
    ours, theirs = build_model(), build_model()
    by_trust_ratios(ours, 3, lr=0.5, momentum=0.9, weight_decay=0.1, maximize=True)
    by_formula(theirs, 3, lr=0.5, momentum=0.9, decay=0.1, sign=-1)
    assert_equal(ours, theirs)


def test_biases_and_norms_step_as_without_lars_to_the_last_bit() -> None:
    ours, theirs = build_model(), build_model()
    by_trust_ratios(ours, 3, lr=0.5, momentum=0.9, weight_decay=0.1)
    plain = torch.optim.SGD(theirs.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    for step in range(3):
        fill_gradients(theirs, step)
        plain.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other) == (mine.ndim < 2)


def test_the_optimizers_own_weight_decay_is_there_again_after_the_step() -> None:
    optimizer = by_trust_ratios(build_model(), 1, lr=0.5, weight_decay=0.1)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    ratios = TrustRatios(optimizer, LarsSpec())
    with pytest.raises(RuntimeError, match="breaks"), ratios.applied():
        raise RuntimeError("the step breaks")
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize(("lr", "step"), [(0.5, 0.01), (0.004, 0.004)], ids=["local rate", "own rate"])
def test_clipped_the_smaller_of_the_local_and_the_own_rate_counts(lr: float, step: float) -> None:
    layer = nn.Linear(2, 2, bias=False).double()
    layer.weight.data.fill_(1.0)
    before = layer.weight.clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    layer.weight.grad = torch.ones_like(layer.weight)  # As large as the weights: the local rate is eta.
    with TrustRatios(optimizer, LarsSpec(trust_coefficient=ETA, clip=True)).applied():
        optimizer.step()
    torch.testing.assert_close(before - layer.weight, torch.full_like(before, step))


def test_a_layer_of_zeros_can_begin_to_learn() -> None:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, weight_decay=0.1)
    layer.weight.grad = torch.ones_like(layer.weight)
    with TrustRatios(optimizer, LarsSpec()).applied():
        optimizer.step()
    assert layer.weight.flatten().tolist() == [-0.5] * 4


@pytest.mark.parametrize("clip", [False, True])
def test_a_layer_without_gradient_or_decay_stays_as_it_is(clip: bool) -> None:
    model = build_model()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    fill_gradients(model, 0, size=0.0)
    with TrustRatios(optimizer, LarsSpec(clip=clip)).applied():
        optimizer.step()
    assert_equal(model, before)


def test_an_optimizer_that_undoes_the_ratios_is_refused() -> None:
    optimizer = torch.optim.AdamW(build_model().parameters())
    with pytest.raises(TaskError, match=r"optimizer is AdamW: use torch\.optim\.SGD"):
        TrustRatios(optimizer, LarsSpec())
