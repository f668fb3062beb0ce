"""A tensor-parallel trainer through the real service grows, is killed, shrinks, and ends as one process does."""

from __future__ import annotations

from pathlib import Path

import torch

from running_service import RunningService, small_spec
from whole_scenario import ends_as_one_process_does, train_through_changes

torch.set_num_threads(1)

NAME = "lines"


def test_a_line_of_two_ranks_is_rescaled_and_killed_and_ends_as_one_process_does(
    shared_service: RunningService, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    spec = small_spec(
        NAME,
        entrypoint="small_task:paced_task",
        epochs=10,
        max_nodes=3,
        arguments={"gate": str(gate), "step_s": 2.0},
        parallel={"tensor": {"line": 2}},
        checkpoint={"every_s": 5.0, "hot_every_steps": 2},
    )
    found = train_through_changes(shared_service, spec, gate)
    ends_as_one_process_does(found, spec.model_copy(update={"parallel": type(spec.parallel)()}))
