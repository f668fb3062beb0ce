"""Candidate algorithms run and give what the layer gives, or are skipped by name."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from oakum_worker.advice import layer_trials
from oakum_worker.advice.algorithms import AS_BUILT, Algorithm, algorithms, forward_replaced
from oakum_worker.advice.layer_trials import TOLERANCE, try_unit
from oakum_worker.advice.units import Unit, units_of


class Attending(nn.Module):
    """A block with a transformer layer, in a list as blocks are."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def images() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(8, 8, (3, 1), groups=2))
    return model, torch.randn(4, 3, 9, 9)


def _units(model: nn.Module, x: torch.Tensor) -> list[Unit]:
    return units_of(model, lambda: model(x))


def test_every_algorithm_of_a_convolution_gives_what_the_layer_gives(images) -> None:
    model, x = images
    trials, skipped = try_unit(_units(model, x)[0], compiles=False)
    assert [trial.algorithm for trial in trials] == [AS_BUILT, "channels-last", "im2col", "without oneDNN"]
    assert all(trial.difference <= TOLERANCE and trial.seconds > 0 for trial in trials)
    assert [one.algorithm for one in skipped] == ["cuDNN benchmark"]


def test_im2col_keeps_the_columns_that_it_makes(images) -> None:
    model, x = images
    trials = {trial.algorithm: trial for trial in try_unit(_units(model, x)[0], compiles=False)[0]}
    columns_bytes = 4 * 4 * (3 * 3 * 3) * 25  # float32, 4 images, c k k rows, 5 x 5 places
    assert trials[AS_BUILT].kept_bytes == 4 * 4 * 8 * 25  # the output alone
    assert trials["im2col"].kept_bytes >= trials[AS_BUILT].kept_bytes + columns_bytes


def test_what_does_not_suit_a_layer_is_skipped_with_the_reason(images) -> None:
    model, x = images
    skipped = {one.algorithm: one.why for one in try_unit(_units(model, x)[1], compiles=False)[1]}
    assert "one group" in skipped["im2col"]
    assert "NVIDIA" in skipped["cuDNN benchmark"]


def test_attention_is_tried_by_its_back_ends_and_recomputed_with_less_memory() -> None:
    torch.manual_seed(0)
    model = Attending()
    units = _units(model, torch.randn(3, 12, 16))
    assert [(unit.names, unit.kind) for unit in units] == [
        (["blocks.0", "blocks.1"], "TransformerEncoderLayer"),
        (["head"], "Linear"),
    ]
    trials, skipped = try_unit(units[0], compiles=False)
    found = {trial.algorithm: trial for trial in trials}
    assert {AS_BUILT, "SDPA math", "SDPA flash", "recompute"} <= set(found)
    assert {"SDPA cuDNN", "SDPA efficient"} <= {one.algorithm for one in skipped}
    assert found["recompute"].kept_bytes < found[AS_BUILT].kept_bytes / 2


class OwnAttention(nn.Module):
    """Attention that a user has written."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.projection(x).unsqueeze(1).chunk(3, -1)
        return scaled_dot_product_attention(q, k, v)


def test_attention_of_a_users_own_is_a_layer_as_a_whole() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 12, 16)
    inner = nn.Sequential(OwnAttention(), nn.Linear(16, 4))
    assert [unit.names for unit in _units(inner, x)] == [["0"], ["1"]]
    [alone] = _units(OwnAttention(), x)
    assert alone.names == [""]
    found = {trial.algorithm for trial in try_unit(alone, compiles=False)[0]}
    assert {"SDPA math", "SDPA flash"} <= found


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_computed_by_fused_loops_and_without_onednn(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer = kind(8, 16, batch_first=True)
    trials, skipped = try_unit(_units(layer, torch.randn(3, 12, 8))[0], compiles=False)
    assert [trial.algorithm for trial in trials] == [AS_BUILT, "fused loops", "without oneDNN", "recompute"]
    assert skipped == []


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_each_size_is_compiled_anew_and_what_is_kept_is_seen(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many sizes of one function torch computes the last ones as built, without a word. A C++ compiler would
    take ten seconds for each size."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    model = nn.Sequential(model)
    compiled = algorithms(model[0], attends=False, compiles=True)[-1]
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (2, 3):
            x = torch.randn(size, 8)
            expected = model(x)
            with forward_replaced(model[0], compiled.of(model[0])):
                found = model(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert "Compiled" in type(found.grad_fn).__name__
    # tanh's output is kept, and it is the result; the weights and x are there anyway.
    assert layer_trials.kept_bytes(found, [*model.parameters(), x]) == 4 * 3 * 4


def test_torch_compile_is_skipped_by_name_without_a_compiler(images, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = images
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    skipped = {one.algorithm: one.why for one in try_unit(_units(model, x)[0], compiles=True)[1]}
    assert skipped["torch.compile"] == "needs a C++ compiler, and none of g++, clang++ is here: install g++"


def test_results_that_differ_are_refused(images, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = images
    wrong = Algorithm("wrong", lambda module: lambda x, forward=module.forward: 1.01 * forward(x))
    monkeypatch.setattr(layer_trials, "algorithms", lambda module, **how: [*algorithms(module, **how)[:1], wrong])
    trials, skipped = try_unit(_units(model, x)[0], compiles=False)
    assert [trial.algorithm for trial in trials] == [AS_BUILT]
    assert "differ" in skipped[0].why


def test_a_trial_leaves_the_module_as_it_was(images) -> None:
    model, x = images
    expected = model(x)
    with forward_replaced(model[0], algorithms(model[0], attends=False, compiles=False)[2].of(model[0])):
        assert "forward" in vars(model[0])
    try_unit(_units(model, x)[0], compiles=False)
    assert "forward" not in vars(model[0])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model(x), expected)


def test_gradients_within_a_context_equal_those_without() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 3).double(), torch.randn(4, 5, dtype=torch.float64)
    layer(x.requires_grad_()).square().sum().backward()
    expected = [x.grad.clone(), layer.weight.grad.clone(), layer.bias.grad.clone()]
    x.grad = layer.weight.grad = layer.bias.grad = None
    without = next(one for one in algorithms(layer, attends=False, compiles=False) if one.name == "without oneDNN")
    with forward_replaced(layer, without.of(layer)):
        layer(x).square().sum().backward()
    for found, other in zip([x.grad, layer.weight.grad, layer.bias.grad], expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=0)
