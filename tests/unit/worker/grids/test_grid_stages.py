"""Whole trainers in pipelines of grids, whose ranks take turns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grid_tasks import WIDTH, build_chain_task
from oakum_worker.parallel.grid_stages.state import StackedState
from oakum_worker.profiling.layout_command import layouts_as_text, measure_layouts
from oakum_worker.profiling.layout_profile import LayoutProfile
from oakum_worker.step.training_loop import TrainingLoop
from pipeline_loops import train_in_turns
from training_ranks import build_spec

calm = partial(build_chain_task, dropout=0.0)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "num_ranks", "steps", "made"),
    [
        pytest.param({"cube": 2}, {"stages": 2}, 16, 4, [(8, 2, 1)], marks=pytest.mark.soak),
        pytest.param({"cube": 2}, {"stages": 2}, 16, 20, [(8, 2, 1)], marks=pytest.mark.soak),
        pytest.param(
            {"square": 2}, {"stages": 2, "schedule": "chimera"}, 9, 4, [(4, 2, 1)], marks=pytest.mark.soak
        ),
        pytest.param(
            {"line": 2},
            {"stages": 3, "schedule": "gpipe", "recompute": True},
            6,
            4,
            [(2, 3, 1)],
            marks=pytest.mark.soak,
        ),
        pytest.param({"shards": 2}, {"stages": 2}, 5, 4, [(2, 2, 1)], marks=pytest.mark.soak),
        ({"line": 2}, {"stages": 2, "micro_batch": 2}, 8, 2, [(2, 2, 2)]),
        ({"cube": 2}, {"stages": 2, "schedule": "1f1b"}, 2, 2, [(2, 1, 1), (1, 2, 1)]),
    ],
)
def test_a_pipeline_of_grids_has_the_losses_of_one_process(
    tensor: dict[str, Any], pipeline: dict[str, Any], num_ranks: int, steps: int, made: list[tuple[int, int, int]]
) -> None:
    """Replicas, both pipes of a Chimera, spare ranks, and too few ranks for a cube. Two ranks make a line or two
    stages, whichever is measured to be faster."""
    others: dict[str, Any] = {"clip_grad_norm": 0.5, "ema": {"decay": 0.9}}
    alone = TrainingLoop(calm(), build_spec(**others))
    expected = [alone.step().loss for _ in range(steps)]
    spec = build_spec(parallel={"tensor": tensor, "pipeline": pipeline}, **others)
    losses, loops = train_in_turns(calm, spec, num_ranks, steps)
    assert losses == pytest.approx(expected, rel=1e-9)
    states = [loop.assembly.state for loop in loops]
    assert isinstance(states[0], StackedState)
    found = states[0].arrangement
    assert (found.grid.num_ranks, found.schedule.num_workers, found.num_replicas) in made
    held = sum(p.numel() for s in states if isinstance(s, StackedState) for p in s.first_held)
    assert held == sum(p.numel() for p in alone.task.model.parameters())
    if found.grid.num_ranks == 1:
        return
    assert all(p.numel() < 4 * WIDTH**2 for s in states if isinstance(s, StackedState) for p in s.parameters)


def test_layouts_are_told_with_the_grid_of_their_stages(tmp_path: Path) -> None:
    spec = tmp_path / "trainer.yaml"
    spec.write_text(
        "name: words\nentrypoint: grid_tasks:build_chain_task\nglobal_batch: 8\nepochs: 1\nmax_nodes: 4\n"
        "parallel: {pipeline: {stages: 2}, tensor: {line: 2}}\n"
    )
    found = measure_layouts(spec, None, None, 1.0, "100GB")
    assert isinstance(found, LayoutProfile)
    assert [(row.grid, row.stages) for row in found.layouts][1::2] == [("line of 2", 1), ("line of 2", 2)]
    assert "line of 2" in layouts_as_text(found).splitlines()[4]
    assert {one.kind for one in found.kinds} >= {"replicated", "sharded", "pipeline", "tensor"}
    by_kind = {one.kind: one for one in found.kinds}
    assert by_kind["sharded"].peak_bytes < by_kind["replicated"].peak_bytes
    assert by_kind["tensor"].peak_bytes < by_kind["replicated"].peak_bytes
    assert [one.step_s for one in found.kinds] == sorted(one.step_s for one in found.kinds)
