"""The search of the design space, what it is made from, and where its answers are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from oakum_worker.profiling import rnn_command  # noqa: F401  registers its command
from oakum_worker.profiling.command import profile_app
from oakum_worker.recurrent import choices, spatial
from oakum_worker.recurrent.design_space import LoopDesign, Shape, search, space, step_s
from oakum_worker.recurrent.kernels import Kernels, kernels
from oakum_worker.recurrent.layers import LSTM
from oakum_worker.recurrent.machine import Processor
from oakum_worker.recurrent.measuring import calibrated, profile

MACHINE = Processor(cores=8, vector_bytes=64, registers=32, l2_bytes=1 << 20, l3_bytes=32 << 20)
SHAPES = st.builds(
    Shape,
    cell=st.sampled_from(("lstm", "gru")),
    hidden=st.integers(1, 3000),
    input=st.integers(1, 3000),
    steps=st.integers(1, 200),
    batch=st.integers(1, 9),
    number_bytes=st.sampled_from((4, 8)),
)
MACHINES = st.builds(
    Processor,
    cores=st.integers(1, 16),
    vector_bytes=st.sampled_from((16, 32, 64)),
    registers=st.sampled_from((16, 32)),
    l2_bytes=st.integers(1 << 18, 1 << 22),
    l3_bytes=st.integers(1 << 22, 1 << 27),
    l2_bytes_per_s=st.floats(5e10, 3e11),
    l3_bytes_per_s=st.floats(2e10, 5e10),
    memory_bytes_per_s=st.floats(2e9, 2e10),
    memory_bytes_per_s_of_all=st.floats(2e10, 1e11),
    barrier_s=st.floats(0, 1e-4),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of this test's own for measured choices."""
    monkeypatch.setattr(choices, "default_file", lambda: tmp_path / "rnn.json")
    choices.choose.cache_clear()
    yield tmp_path / "rnn.json"
    choices.choose.cache_clear()


def loaded() -> Kernels:
    found = kernels()
    assert isinstance(found, Kernels)
    return found


@given(SHAPES, MACHINES, st.none() | st.integers(1, 20))
@example(Shape("lstm", 2048, 2048, 25), MACHINE, None)
def test_the_search_finds_what_a_look_at_every_choice_finds(
    shape: Shape, machine: Processor, threads: int | None
) -> None:
    everything = {choice: step_s(shape, choice, machine) for choice in space(shape, machine, threads)}
    found = search(shape, machine, threads)
    assert found.predicted_s == min(everything.values())
    assert found.choice == min(everything, key=lambda choice: everything[choice])
    assert found.looked_at <= len(everything)


def test_the_search_computes_the_times_of_few_choices() -> None:
    shape = Shape("lstm", 2048, 2048, 25)
    assert search(shape, MACHINE).looked_at < len(list(space(shape, MACHINE))) / 4


@given(st.integers(1, 400), st.sampled_from((3, 4)), st.integers(4, 300), st.integers(1, 40))
@example(256, 4, 96, 16)
def test_the_spatial_search_finds_what_a_look_at_every_tiling_finds(
    hidden: int, gates: int, units: int, rv: int
) -> None:
    chip = spatial.Chip(units, rv)
    found = spatial.search(hidden, gates, chip)
    best = min(
        spatial.every_tiling(hidden, gates, chip), key=lambda one: (one.cycles(hidden), one.units(gates), one.hu)
    )
    assert found == best
    assert found.units(gates) <= units
    assert 0 <= found.fragmentation(hidden) < 1


def test_a_tile_that_does_not_divide_the_sizes_computes_much_for_nothing() -> None:
    fixed = spatial.Tiling(hu=100, ru=6, rv=40)
    assert fixed.cycles(512) == 6 * 5
    assert fixed.fragmentation(512) == pytest.approx(1 - 2 * 512 * 512 / (30 * 100 * 240))
    assert spatial.Tiling(hu=64, ru=16, rv=16).fragmentation(512) == 0.0
    with pytest.raises(ValueError, match="too few"):
        spatial.search(512, 4, spatial.Chip(3, 16))


def test_more_threads_and_longer_tiles_cost_less_where_weights_come_from_memory() -> None:
    shape, one = Shape("lstm", 2048, 2048, 25), LoopDesign(1, 2, 1, 1, serpentine=False)
    times = [
        step_s(shape, choice, MACHINE)
        for choice in (one, replace(one, tile=16), replace(one, tile=16, serpentine=True))
    ]
    assert sorted(times, reverse=True) == times
    assert len(set(times)) == 3
    assert step_s(shape, replace(one, threads=8), MACHINE) < times[0]


def test_every_choice_is_timed_and_layers_run_with_the_fastest(cache: Path) -> None:
    shape = Shape("lstm", 32, 32, 5)
    found = profile(loaded(), shape, 1, seconds=0, keep=True)
    assert [one.choice for one in found.candidates] == sorted(
        space(shape, found.machine, 1), key=[one.choice for one in found.candidates].index
    )
    measured = [one.measured_s for one in found.candidates]
    assert measured == sorted(measured)
    own = next(one for one in found.candidates if one.choice == found.model.choice)
    another = replace(own.choice, tile=own.choice.tile + 1)
    better = replace(own, choice=another, measured_s=own.measured_s / 4)
    assert replace(found, candidates=(own,)).regret == 0
    assert replace(found, candidates=(better, own)).regret == pytest.approx(3)
    assert found.rounds == 1
    other = replace(found.fastest.choice, unroll=4, unit_tiles=1)
    for choice in (found.fastest.choice, other):
        choices.remember(shape, 1, choice)
        assert choices.choose(shape, 64, 1) == choice
    assert choices.choose(replace(shape, hidden=33), 64, 1) != other


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "not JSON",
        {"unit_tiles": 9},
        {"unit_tiles": 1, "unroll": 3, "tile": 1, "threads": 1, "serpentine": 0},
    ],
)
def test_a_damaged_file_of_choices_is_passed_over(cache: Path, content: object) -> None:
    shape = Shape("gru", 64, 64, 5)
    choices.remember(shape, 1, LoopDesign(2, 2, 4, 1, serpentine=True))
    entries = json.loads(cache.read_text())
    damaged = json.dumps(dict.fromkeys(entries, content)) if isinstance(content, dict) else str(content)
    cache.write_text(damaged)
    choices.choose.cache_clear()
    assert choices.remembered(shape, 1) is None
    assert choices.choose(shape, 64, 1).threads == 1


def test_a_choice_with_more_threads_than_there_may_be_is_passed_over(cache: Path) -> None:
    shape = Shape("gru", 64, 64, 5)
    choices.remember(shape, 4, LoopDesign(1, 1, 4, 4, serpentine=True))
    assert choices.remembered(shape, 4) is not None
    assert choices.remembered(shape, 2) is None


def test_rates_of_this_machine_are_in_order() -> None:
    machine = calibrated(loaded(), 1)
    assert 0 < machine.memory_bytes_per_s <= machine.l3_bytes_per_s <= machine.l2_bytes_per_s


@pytest.mark.usefixtures("cache")
def test_the_command_prints_the_space_the_choice_and_both_times() -> None:
    arguments = ["rnn", "--hidden", "32", "--steps", "4", "--threads", "1", "--seconds", "0"]
    told = CliRunner().invoke(profile_app, arguments, catch_exceptions=False)
    assert told.exit_code == 0
    assert "back and forth   predicted    measured" in told.output
    assert "20 choices, each timed 1 times" in told.output
    assert "inference runs by " in told.output
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    layer = LSTM(32, 32)
    layer(torch.zeros(4, 1, 32))
    torch.set_num_threads(before)
    document = json.loads(CliRunner().invoke(profile_app, [*arguments, "--json"]).output)
    assert document["remembered_before"] is not None
    assert len(document["candidates"]) == 20
    assert set(document["verdict"]) == {"fused_s", "torch_s"}


def test_the_command_shows_the_accelerator_on_paper() -> None:
    told = CliRunner().invoke(profile_app, ["rnn", "--hidden", "512", "--chip", "6000x16"])
    assert told.exit_code == 0
    assert "* found by the search" in told.output
    for wrong in ("600", "0x16", "3x16"):
        refused = CliRunner().invoke(profile_app, ["rnn", "--hidden", "512", "--chip", wrong])
        assert refused.exit_code == 2
