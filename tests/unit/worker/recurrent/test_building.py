"""Where compiled loops come from, and what takes their place."""

from __future__ import annotations

import importlib
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import oakum_worker
from oakum_worker.errors import NoLoopsError, TrainingWarning
from oakum_worker.recurrent import building, kernels, layers
from oakum_worker.recurrent.layers import GRU, LSTM


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled loops, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "oakum" / "recurrent"


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What this process knows of the loops is forgotten before the test and after it."""
    for _ in range(2):
        kernels.kernels.cache_clear()
        layers._warn_of_torch.cache_clear()
        if _ == 0:
            yield


def write_compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_nothing_is_compiled_or_loaded_by_imports(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oakum_worker, "recurrent", oakum_worker.recurrent)
    for name in [name for name in sys.modules if name.startswith("oakum_worker.recurrent")]:
        monkeypatch.delitem(sys.modules, name)
    anew = importlib.import_module("oakum_worker.recurrent.layers")
    assert anew is not layers
    assert importlib.import_module("oakum_worker.recurrent.kernels").kernels.cache_info().currsize == 0
    assert not cache.parent.exists()


def test_loops_are_compiled_once_into_a_folder_for_the_user_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'echo "$@" >> {tmp_path}/calls; while [ "$1" != -o ]; do shift; done; echo built > "$2"'
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "compiler", script))
    first, second = building.library(), building.library()
    assert first == second == cache / f"loops-{building.build_key()}.so"
    assert first.read_text() == "built\n"
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, first)] == [0o700, 0o700]
    assert sorted(path.name for path in cache.iterdir()) == ["lock", first.name]


def test_another_source_or_processor_is_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = {building.build_key()}
    monkeypatch.setattr(building, "processor", lambda: "another")
    keys.add(building.build_key())
    (tmp_path / "loops.cpp").write_text("another")
    monkeypatch.setattr(building, "SOURCE", tmp_path / "loops.cpp")
    keys.add(building.build_key())
    assert len(keys) == 3


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_loaded_from(cache: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    with pytest.raises(NoLoopsError, match="not yours alone"):
        building.library()


def test_a_folder_below_one_that_others_can_write_to_is_not_loaded_from(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    cache.parent.chmod(0o777)
    with pytest.raises(NoLoopsError, match="others may write to"):
        building.library()


def test_a_library_that_others_can_write_to_or_that_is_a_link_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    folder = building.private_folder()
    library = folder / f"loops-{building.build_key()}.so"
    library.write_bytes(b"")
    library.chmod(0o722)
    with pytest.raises(NoLoopsError, match="not yours alone"):
        building.library()
    library.unlink()
    (tmp_path / "other.so").write_bytes(b"")
    library.symlink_to(tmp_path / "other.so")
    with pytest.raises(NoLoopsError, match="not yours alone"):
        building.library()


def test_a_compiler_that_fails_says_why_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "compiler", "echo bad option >&2; exit 1"))
    with pytest.raises(NoLoopsError, match="bad option"):
        building.library()
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.usefixtures("forgotten", "cache")
@pytest.mark.parametrize("kinds", [(nn.LSTM, LSTM), (nn.GRU, GRU)])
def test_without_a_compiler_torch_computes_and_a_warning_says_so_once(
    kinds: tuple[Callable[..., nn.RNNBase], Callable[..., nn.RNNBase]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reference, layer = (kind(3, 5, num_layers=2, bidirectional=True) for kind in kinds)
    reference.load_state_dict(layer.state_dict())
    input = torch.randn(4, 2, 3)
    with pytest.warns(TrainingWarning, match="no-such-compiler") as warned:
        found = [layer(input) for _ in range(2)]
    assert len(warned) == 1
    assert layer.runs.startswith("torch (no C++ compiler")
    torch.testing.assert_close(found[1], reference(input))


@pytest.mark.usefixtures("forgotten")
def test_fused_loops_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAKUM_FUSED_LOOPS", "false")
    with pytest.warns(TrainingWarning, match="OAKUM_FUSED_LOOPS"):
        assert LSTM(3, 5).runs == "torch (OAKUM_FUSED_LOOPS switches the fused loops off)"


@pytest.mark.usefixtures("forgotten")
def test_a_damaged_library_is_reported(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = building.private_folder()
    library = folder / f"loops-{building.build_key()}.so"
    library.write_bytes(b"not a library")
    library.chmod(0o700)
    found = kernels.kernels()
    assert isinstance(found, NoLoopsError)
    assert "remove it" in str(found)
