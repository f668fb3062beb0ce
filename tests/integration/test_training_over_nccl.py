"""Trainers of each kind lose a rank over what stands in for NCCL, and train the same as over gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grid_tasks import build_words_task
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_tasks import build_deep_task
from sharded_ranks import Act, Script, play
from training_ranks import build_spec, build_task

torch.set_num_threads(1)
LAST = 5
KINDS: dict[str, tuple[Callable[[], Task], dict[str, Any]]] = {
    "replicated": (build_task, {}),
    "torus": (build_task, {"all_reduce": "torus"}),
    "sharded": (build_task, {"data": "sharded"}),
    "pipeline": (build_deep_task, {"pipeline": {"stages": 2, "micro_batch": 2}}),
    "grid": (build_words_task, {"tensor": {"square": 2}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_killed_in_mid_step_costs_no_step_and_changes_no_loss(kind: str, tmp_path: Path) -> None:
    """Five ranks lose one; of a torus four are left, and at last one alone trains on."""
    build, parallel = KINDS[kind]
    acts = (
        Act((0, 1, 2, 3), until=2, dies=(3,)),
        Act((0, 1), until=4),
        Act((0,), until=LAST),
    )
    script = Script(
        acts,
        str(tmp_path),
        task=build,
        spec={"parallel": parallel, "checkpoint": {"hot_every_steps": 1}},
        measured=False,
        kind="stand_in",
    )
    outcomes = play(script)
    loop = TrainingLoop(build(), build_spec())
    expected = [pytest.approx(loop.step().loss, rel=1e-9) for _ in range(LAST)]
    survivor = outcomes[0]
    assert survivor is not None
    assert outcomes[3] is None
    assert dict(survivor.losses) == dict(enumerate(expected, 1))
