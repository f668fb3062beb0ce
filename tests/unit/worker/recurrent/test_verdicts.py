"""Which of both ways computes a layer, and what measuring them leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.overrides import TorchFunctionMode

from oakum_worker.recurrent import choices, layers, verdicts
from oakum_worker.recurrent.design_space import Shape
from oakum_worker.recurrent.layers import GRU, LSTM
from oakum_worker.recurrent.passes import run_layer
from oakum_worker.recurrent.verdicts import Verdict, alike

FUSED, TORCH = Verdict(fused_s=0.0012, torch_s=0.0021), Verdict(fused_s=0.0021, torch_s=0.0012)


def forget() -> None:
    """Have this process forget all verdicts, as a new process would."""
    verdicts.faster.cache_clear()
    verdicts._of_class.cache_clear()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of this test's own for verdicts."""
    monkeypatch.setattr(choices, "default_file", lambda: tmp_path / "kept" / "rnn.json")
    forget()
    yield tmp_path / "kept" / "rnn.json"
    forget()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Shape, str]]:
    """The shapes that are measured, each with what is differentiated; torch is the faster of all."""
    seen: list[tuple[Shape, str]] = []

    def timed(_: object, shape: Shape, threads: int, gradients: str, __: object) -> Verdict:
        seen.append((shape, gradients))
        return TORCH

    monkeypatch.setattr(verdicts, "_timed", timed)
    return seen


def ran_loops(layer: nn.Module, input: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(layers, "run_layer", lambda *arguments: (ran.append(1), run_layer(*arguments))[1])
        layer(input)
    return bool(ran)


def test_a_size_is_measured_once_and_the_verdict_is_kept_for_other_processes(
    measured: list[tuple[Shape, str]], cache: Path
) -> None:
    layer, input = LSTM(8, 16), torch.randn(25, 3, 8)
    for _ in range(3):
        layer(input)
        with torch.no_grad():
            layer(input)
    layer(input.clone().requires_grad_())
    assert measured == [(Shape("lstm", 16, 8, 32, 4), kind) for kind in ("weights", "none", "inputs")]
    assert len(json.loads(cache.read_text())) == 3
    forget()
    LSTM(8, 16)(input)
    assert len(measured) == 3


def test_sizes_near_each_other_share_a_verdict(measured: list[tuple[Shape, str]]) -> None:
    layer = GRU(8, 16)
    for lengths in ([30, 20, 9], [28, 3, 2, 1], [40, 40, 40]):
        layer(pack_sequence([torch.randn(length, 8) for length in lengths]))
    assert len(measured) == 1
    long = Shape("gru", 16, 8, 5000, 5000)
    assert alike(long) == alike(replace(long, steps=100, batch=300)) == replace(long, steps=64, batch=256)
    assert alike(replace(long, steps=1, batch=1)) == replace(long, steps=1, batch=1)


@pytest.mark.parametrize("kinds", [(nn.LSTM, LSTM), (nn.GRU, GRU)])
def test_the_faster_computes_a_layer_and_runs_tells_why(kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, layer = (kind(5, 6, num_layers=2, bidirectional=True, batch_first=True).double() for kind in kinds)
    layer.load_state_dict(reference.state_dict())
    input = torch.randn(3, 7, 5, dtype=torch.float64)
    packed = pack_sequence([input[0], input[1, :4]])
    assert layer.runs.startswith("fused loops (or torch")
    monkeypatch.setattr(layers, "faster", lambda *_: TORCH)
    for _ in range(2):
        assert not ran_loops(layer, input, monkeypatch)
        torch.testing.assert_close(layer(input), reference(input), rtol=0, atol=1e-12)
        torch.testing.assert_close(layer(packed)[0].data, reference(packed)[0].data, rtol=0, atol=1e-12)
    assert layer.runs == "torch (faster at this size: 1.2 ms against 2.1)"
    monkeypatch.setattr(layers, "faster", lambda *_: FUSED)
    longer = torch.randn(3, 9, 5, dtype=torch.float64)
    assert ran_loops(layer, longer, monkeypatch)
    assert layer.runs == "fused loops (faster at this size: 1.2 ms against 2.1)"
    torch.testing.assert_close(layer(longer), reference(longer), rtol=0, atol=1e-12)


def test_the_loops_have_to_be_faster_by_more_than_noise() -> None:
    assert not Verdict(fused_s=1.0, torch_s=1.08).is_fused
    assert Verdict(fused_s=1.0, torch_s=1.12).is_fused


def test_measuring_leaves_the_callers_random_state_and_modes_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verdict, "is_fused", True)
    called: list[object] = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func)
            return func(*args, **(kwargs or {}))

    def pass_on(tensor: torch.Tensor) -> torch.Tensor:
        called.append(tensor.shape)
        return tensor

    def seen(layer: nn.Module) -> list[object]:
        called.clear()
        with Watching(), torch.autograd.graph.saved_tensors_hooks(pass_on, pass_on):
            layer(input)
        return list(called)

    layer, input = GRU(8, 16), torch.randn(25, 2, 8)
    layer(input)
    known = seen(layer)
    forget()
    cache.unlink()
    before = torch.get_rng_state()
    assert seen(layer) == known
    assert torch.equal(torch.get_rng_state(), before)
    assert len(json.loads(cache.read_text())) == 1
    with torch.inference_mode():
        layer(input)
    assert len(json.loads(cache.read_text())) == 2


def test_where_nothing_can_be_written_a_verdict_stays_in_the_process(
    measured: list[tuple[Shape, str]], cache: Path
) -> None:
    cache.parent.write_text("a file in the place of the folder")
    for _ in range(2):
        LSTM(8, 16)(torch.randn(25, 3, 8))
    assert len(measured) == 1


@pytest.mark.parametrize(
    "content", [None, {"fused_s": 1}, {"fused_s": "1", "torch_s": 2}, {"fused_s": 0, "torch_s": 1}]
)
def test_a_damaged_verdict_is_measured_again(
    content: object, measured: list[tuple[Shape, str]], cache: Path
) -> None:
    layer, input = LSTM(8, 16), torch.randn(25, 3, 8)
    layer(input)
    cache.write_text(json.dumps(dict.fromkeys(json.loads(cache.read_text()), content)))
    forget()
    LSTM(8, 16)(input)
    assert len(measured) == 2


def test_both_ways_are_measured_at_the_size_and_long_calls_by_few_turns() -> None:
    LSTM(8, 16)(torch.randn(25, 3, 8))
    shape = Shape("lstm", 2048, 2048, 64, 256)
    assert verdicts._shortened(shape).steps == 8
    assert verdicts._shortened(replace(shape, hidden=64, input=64, batch=1)).steps == 64
    assert verdicts._is_enough(1, 3.0, [1.0, 2.0])
    assert not verdicts._is_enough(1, 3.0, [1.0, 1.2])
    assert verdicts._is_enough(2, 3.0, [1.0, 1.2])
    assert not verdicts._is_enough(3, 3.0, [0.01, 0.9])
