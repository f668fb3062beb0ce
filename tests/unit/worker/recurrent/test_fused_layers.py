"""Fused layers beside torch's, with the same parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from cells import each
from loop_verdicts import loops_are_faster
from num_examples import scaled
from oakum_worker.recurrent import layers, packing
from oakum_worker.recurrent.design_space import LoopDesign
from oakum_worker.recurrent.kernels import kernels
from oakum_worker.recurrent.layers import GRU, LSTM
from oakum_worker.recurrent.passes import run_layer

DEEPBENCH = [
    *(("lstm", hidden) for hidden in (256, 512, 1024, 1536, 2048)),
    *(("gru", hidden) for hidden in (512, 1024, 1536, 2048, 2560, 2816)),
]
PAIRS: dict[str, tuple[type[nn.RNNBase], type[nn.RNNBase]]] = {"lstm": (nn.LSTM, LSTM), "gru": (nn.GRU, GRU)}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(layers, "_FEWEST_STEPS", 0)
    monkeypatch.setattr(layers, "faster", loops_are_faster)
    # Threads that wait for each other once a step take long on a busy machine: single tests have several.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build_pair(cell: str, *sizes: int, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, Any]:
    """Torch's layer and the fused one, with the same parameters (the same tensors)."""
    torch.manual_seed(0)
    kinds = PAIRS[cell]
    reference = kinds[0](*sizes, **options).to(dtype)
    with torch.device("meta"):
        fused = kinds[1](*sizes, **options)
    fused.load_state_dict(reference.state_dict(keep_vars=True), assign=True)
    assert fused.runs.startswith("fused loops")
    return reference, fused


def passes(layer: Any, input: Any, states: tuple[torch.Tensor, ...], *, grad: bool = True) -> list[torch.Tensor]:
    """Outputs and last states, then gradients of a random sum of them by inputs, states and parameters."""
    hx = states if isinstance(layer, nn.LSTM) else states[0]
    with torch.set_grad_enabled(grad):
        output, last = layer(input, hx)
    made = [getattr(output, "data", output), *(last if isinstance(last, tuple) else [last])]
    if not grad:
        return made
    weights = torch.Generator().manual_seed(1)
    loss = sum((one * torch.randn(one.shape, generator=weights, dtype=torch.float64)).sum() for one in made)
    given = states if isinstance(layer, nn.LSTM) else states[:1]
    leaf = input if isinstance(input, torch.Tensor) else input.data
    return [*made, *torch.autograd.grad(loss, [leaf, *given, *layer.parameters()])]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor], atol: float) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def build_states(layer: Any, batch: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    number = layer.num_layers * (2 if layer.bidirectional else 1)
    shape = (number, batch, layer.hidden_size)
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(2))


@pytest.mark.parametrize(
    ("cell", "hidden"),
    [pytest.param(*size, marks=() if size[1] <= 512 else pytest.mark.soak) for size in DEEPBENCH],
)
def test_outputs_and_gradients_of_deepbenchs_sizes_equal_torchs(cell: str, hidden: int) -> None:
    reference, fused = build_pair(cell, hidden, hidden)
    input = torch.randn(3, 1, hidden, dtype=torch.float64, requires_grad=True)
    states = build_states(reference, 1)
    assert_equal(passes(fused, input, states), passes(reference, input, states), 1e-10)


@pytest.mark.parametrize("cell", PAIRS)
@settings(max_examples=scaled(40))
@given(
    hidden=st.integers(1, 40),
    size=st.integers(1, 40),
    number=st.integers(1, 12),
    batch=st.integers(1, 9),
    num_layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    choice=st.builds(
        LoopDesign,
        unit_tiles=st.sampled_from((1, 2)),
        unroll=st.sampled_from((1, 2, 4)),
        tile=st.sampled_from((1, 4, 16)),
        threads=st.just(1),
        serpentine=st.booleans(),
    ),
)
@example(
    hidden=70,
    size=7,
    number=70,
    batch=1,
    num_layers=1,
    bidirectional=True,
    batch_first=False,
    bias=True,
    choice=LoopDesign(2, 2, 64, 3, True),
)
@example(
    hidden=33,
    size=5,
    number=6,
    batch=7,
    num_layers=1,
    bidirectional=False,
    batch_first=True,
    bias=True,
    choice=LoopDesign(1, 1, 1, 2, False),
)
def test_any_shape_and_any_choice_computes_what_torch_does(
    cell: str, hidden: int, size: int, number: int, batch: int, choice: LoopDesign, **options: Any
) -> None:
    reference, fused = build_pair(cell, size, hidden, **options)
    shape = (batch, number, size) if options["batch_first"] else (number, batch, size)
    input = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    states = build_states(reference, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "choose", lambda *_: choice)
        expected = passes(reference, input, states)
        assert_equal(passes(fused, input, states), expected, 1e-10)
        alone = passes(fused, input, states, grad=False)
    assert_equal(alone, expected[: len(alone)], 1e-10)


@pytest.mark.parametrize("cell", PAIRS)
@settings(max_examples=scaled(25))
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    num_layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    tile=st.sampled_from((1, 4, 16)),
)
def test_packed_sequences_of_any_lengths_compute_what_torch_does(
    cell: str, lengths: list[int], num_layers: int, bidirectional: bool, tile: int
) -> None:
    reference, fused = build_pair(cell, 5, 11, num_layers=num_layers, bidirectional=bidirectional)
    made = pack_sequence([torch.randn(n, 5, dtype=torch.float64) for n in lengths], enforce_sorted=False)
    packed = made._replace(data=made.data.requires_grad_())
    states = build_states(reference, len(lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "choose", lambda *_: LoopDesign(1, 1, tile, 1, True))
        expected = passes(reference, packed, states)
        assert_equal(passes(fused, packed, states), expected, 1e-10)
        output, _ = fused(packed)
    assert [output.batch_sizes.tolist(), output.sorted_indices.tolist(), output.unsorted_indices.tolist()] == [
        packed.batch_sizes.tolist(),
        packed.sorted_indices.tolist(),
        packed.unsorted_indices.tolist(),
    ]


@pytest.mark.parametrize("cell", PAIRS)
def test_float32_is_as_close_to_float64_as_torchs_float32_is(cell: str) -> None:
    reference, fused = build_pair(cell, 64, 300, dtype=torch.float32)
    exact = copy.deepcopy(reference).double()
    input, states = torch.randn(20, 2, 64), build_states(reference, 2, torch.float32)

    def errors(layer: Any) -> list[float]:
        leaf = input.clone().requires_grad_()
        expected = passes(
            exact, input.double().requires_grad_(), tuple(s.detach().double().requires_grad_() for s in states)
        )
        found = passes(layer, leaf, states)
        return [
            ((one - other).abs().max() / other.abs().max()).item()
            for one, other in zip(found, expected, strict=True)
        ]

    assert max(errors(fused)) < 2 * max(errors(reference)) + 1e-7
    assert max(errors(fused)) < 1e-5


def test_large_and_infinite_inputs_saturate_and_nan_stays_nan() -> None:
    for cell in PAIRS:
        reference, fused = build_pair(cell, 3, 20, dtype=torch.float32)
        for value in (1e4, -1e4, 1e30, float("inf"), float("nan")):
            input = torch.full((2, 1, 3), value)
            torch.testing.assert_close(fused(input)[0], reference(input)[0], equal_nan=True)


@pytest.mark.parametrize("cell", PAIRS)
def test_gradcheck(cell: str) -> None:
    _, fused = build_pair(cell, 3, 5, bidirectional=True)
    input = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in fused.named_parameters()]

    def run(input: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(names, parameters, strict=True))
        made: torch.Tensor = torch.func.functional_call(fused, named, (input,))[0]
        return made

    assert torch.autograd.gradcheck(run, (input, *fused.parameters()))


@pytest.mark.parametrize("cell", PAIRS)
def test_second_derivatives_equal_torchs(cell: str) -> None:
    reference, fused = build_pair(cell, 3, 5, bidirectional=True)
    input = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)

    def penalty_gradients(layer: Any) -> tuple[torch.Tensor, ...]:
        (slope,) = torch.autograd.grad(layer(input)[0].pow(2).sum(), input, create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), [input, *layer.parameters()])

    for found, expected in zip(penalty_gradients(fused), penalty_gradients(reference), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("cell", PAIRS)
def test_state_dicts_are_exchanged_with_torchs_layers(cell: str) -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "bias": False}
    reference, fused = (kind(4, 6, **options) for kind in PAIRS[cell])
    fused.load_state_dict(reference.state_dict())
    reference.load_state_dict(fused.state_dict())
    assert list(fused.state_dict()) == list(reference.state_dict())
    assert isinstance(fused, type(reference))
    input = torch.randn(5, 3, 4)
    torch.testing.assert_close(fused(input)[0], reference(input)[0])


@pytest.mark.parametrize("cell", PAIRS)
def test_one_sequence_without_a_batch_dimension(cell: str) -> None:
    reference, fused = build_pair(cell, 4, 6, batch_first=True)
    input = torch.randn(5, 4, dtype=torch.float64)
    found, expected = fused(input), reference(input)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


def test_wrong_arguments_are_refused_as_torch_refuses_them() -> None:
    reference, fused = build_pair("lstm", 4, 6)
    good = torch.zeros(5, 2, 4, dtype=torch.float64)
    state = torch.zeros(1, 3, 6, dtype=torch.float64)
    for arguments in (
        (good[0, 0],),
        (good[..., :3],),
        (good.float(),),
        (good, (state, state)),
        (good, (state[0], state[0])),
    ):
        errors = []
        for layer in (reference, fused):
            with pytest.raises((ValueError, RuntimeError)) as caught:
                layer(*arguments)
            errors.append(type(caught.value))
        assert errors[0] is errors[1]


@each("change", ["in place", "through data", "other parameters", "moved"])
def test_changed_weights_are_used_at_once(change: str) -> None:
    _, fused = build_pair("gru", 8, 16)
    input = torch.randn(3, 1, 8, dtype=torch.float64)
    with torch.no_grad():
        before = fused(input)[0]
        for weight in (fused.weight_hh_l0, fused.weight_ih_l0):
            match change:
                case "in place":
                    weight.mul_(2)
                case "through data":
                    weight.data.mul_(2)
                case "moved":
                    weight.data = weight.data * 2
        if change == "other parameters":
            fused.weight_hh_l0 = nn.Parameter(fused.weight_hh_l0 * 2)
        after = fused(input)[0]  # before anything else could have torch count a change
        reference = nn.GRU(8, 16).double()
        reference.load_state_dict(fused.state_dict())
        assert not torch.equal(after, before)
        torch.testing.assert_close(after, reference(input)[0])


def test_weights_are_copied_once_as_long_as_they_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fused = build_pair("lstm", 8, 16)
    copied: list[int] = []
    compiled = kernels()
    original = type(compiled).pack
    monkeypatch.setattr(
        type(compiled), "pack", lambda self, *arguments: (copied.append(1), original(self, *arguments))[1]
    )
    input = torch.zeros(3, 1, 8, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(3):
            fused(input)
    assert len(copied) == 2
    fused(input)[0].sum().backward()  # copies again, once for both passes
    assert len(copied) == 4
    packing.forget()
    with torch.no_grad():
        fused(input)
    assert len(copied) == 6


def test_what_loops_cannot_compute_goes_through_torch() -> None:
    _, fused = build_pair("lstm", 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fused.runs == "torch (autocast is on)"
    assert fused.to(torch.bfloat16).runs == "torch (of torch.bfloat16)"
    projected = LSTM(8, 16, proj_size=4, num_layers=2, bidirectional=True)
    assert projected.runs == "torch (it has projections)"
    reference = nn.LSTM(8, 16, proj_size=4, num_layers=2, bidirectional=True)
    reference.load_state_dict(projected.state_dict())
    input = torch.randn(5, 3, 8)
    torch.testing.assert_close(projected(input), reference(input))


@pytest.mark.parametrize("cell", sorted(PAIRS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_supported", [None, False], ids=["this machine", "without AVX-512"])
def test_it_computes_under_autocast_on_every_processor(
    cell: str, dtype: torch.dtype, is_supported: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where oneDNN has no LSTM in autocast's type, with gradients or at all, and torch's own raises."""
    reference, fused = (layer.float() for layer in build_pair(cell, 8, 16))
    if is_supported is not None:
        monkeypatch.setattr("oakum_worker.recurrent.passes.onednn_computes", lambda *_, **__: is_supported)
    input = torch.randn(5, 3, 8)
    with torch.autocast("cpu", dtype=dtype):
        output = fused(input)[0]
        with torch.no_grad():
            torch.testing.assert_close(fused(input)[0], output, rtol=0.02, atol=0.02, check_dtype=False)
    output.float().sum().backward()
    torch.testing.assert_close(output.float(), reference(input)[0], rtol=0.02, atol=0.02)
    assert all(weight.grad.isfinite().all() for weight in fused.parameters())


def test_a_layer_can_be_copied_and_used_in_inference_mode() -> None:
    reference, fused = build_pair("gru", 8, 16)
    input = torch.randn(3, 1, 8, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(copy.deepcopy(fused)(input)[0], reference(input)[0])


def test_few_steps_are_trained_by_torch_since_the_weights_copies_would_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "_FEWEST_STEPS", 4)
    ran: list[int] = []
    original = run_layer
    monkeypatch.setattr(layers, "run_layer", lambda *arguments: (ran.append(1), original(*arguments))[1])
    _, fused = build_pair("gru", 4, 6)
    for number, expected in ((3, 0), (4, 1)):
        fused(torch.zeros(number, 1, 4, dtype=torch.float64))
        assert len(ran) == expected
    with torch.no_grad():
        fused(torch.zeros(1, 1, 4, dtype=torch.float64))
    assert len(ran) == 2


def test_a_compiled_model_runs_the_loops_as_they_are() -> None:
    _, fused = build_pair("lstm", 4, 6)
    model = nn.Sequential(fused)
    model.forward = lambda input: 2 * fused(input + 1)[0]  # type: ignore[method-assign]
    input = torch.randn(5, 2, 4, dtype=torch.float64)

    def passes_of(model: Any) -> tuple[torch.Tensor, ...]:
        made = model(input)
        return made, *torch.autograd.grad(made.square().sum(), fused.weight_hh_l0)

    compiled = torch.compile(model.forward, backend="eager")
    for found, expected in zip(passes_of(compiled), passes_of(model), strict=True):
        torch.testing.assert_close(found, expected)
