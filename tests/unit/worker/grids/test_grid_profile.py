"""What `oakum profile layout` tells of a trainer on grids: how each parameter is divided."""

from __future__ import annotations

from oakum_worker.profiling.grid_profile import grids_as_text, profile_grids
from training_ranks import build_spec


def test_it_says_how_every_parameter_is_divided_and_tells_alike_ones_in_one_line() -> None:
    spec = build_spec(
        entrypoint="grid_tasks:build_words_task",
        arguments={"dropout": 0.0},
        max_nodes=8,
        parallel={"tensor": {"cube": 2}},
    )
    found = profile_grids(spec)
    assert found.largest_grid == "cube of 2"
    names = [line.partition(": ")[0] for line in found.converted]
    assert names
    assert len(set(names)) == len(names)
    text = grids_as_text(found)
    listed = text.partition("Parameters on a cube of 2:\n")[2].splitlines()
    assert 0 < len(listed) < len(names)
    assert any(" parameters)" in line for line in listed)
