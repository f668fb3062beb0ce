"""Pipeline training whose ranks come, go and die, against one process that nobody disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from torch.distributed.checkpoint import FileSystemReader

from oakum_worker.schedule_table import PipelineSchedule
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_tasks import build_deep_task, build_evaluated_task, build_masked_task, build_transformer_task
from sharded_ranks import Act, Outcome, Script, play
from total_tasks import build_token_chain
from training_ranks import build_spec

STEPS_OF_EPOCH = 7
"""Of 53 samples in batches of 8: the last one has 5."""


def spec(schedule: str, stages: int = 4) -> dict[str, Any]:
    return {
        "parallel": {"pipeline": {"stages": stages, "schedule": schedule, "micro_batch": 1}},
        "clip_grad_norm": 0.5,
        "checkpoint": {"hot_every_steps": 4},
    }


@lru_cache
def undisturbed(task: Callable[[], Task], num_steps: int) -> tuple[dict[int, float], dict[str, Any]]:
    """Losses by step, and final weights, of plain training of the same task in one process."""
    loop = TrainingLoop(task(), build_spec(clip_grad_norm=0.5))
    losses = {step: loop.step().loss for step in range(1, num_steps + 1)}
    return losses, {name: p.detach().numpy() for name, p in loop.task.model.named_parameters()}


def assert_undisturbed(
    outcomes: list[Outcome | None],
    task: Callable[[], Task],
    num_steps: int,
    after: int = 0,
    rel: float = 1e-9,
) -> None:
    """The losses of all steps `after` those of a checkpoint, and the weights in the end."""
    alive = [outcome for outcome in outcomes if outcome is not None]
    losses, weights = undisturbed(task, num_steps)
    made = {step: loss for outcome in alive for step, loss in outcome.losses}
    assert made == {step: pytest.approx(loss, rel=rel) for step, loss in losses.items() if step > after}
    held = [(name, value) for outcome in alive for name, value in outcome.weights.items()]
    assert {name for name, _ in held} == set(weights)
    for name, value in held:
        np.testing.assert_allclose(value, weights[name], rtol=0, atol=1e-9, err_msg=name)


SCHEDULES = [
    ("gpipe", 4),
    ("1f1b", 8),
    ("interleaved", 4),
    ("zero-bubble", 4),
    ("zero-bubble-v", 4),
    ("chimera", 8),
    ("message-driven", 8),
]


def schedules_trying(*shown: str) -> list[Any]:
    """All schedules; `make test` tries those that are `shown`, and `make soak` the others."""
    return [
        pytest.param(name, stages, marks=() if name in shown else pytest.mark.soak) for name, stages in SCHEDULES
    ]


def test_no_schedule_of_the_spec_is_left_out() -> None:
    assert {name for name, _ in SCHEDULES} == set(get_args(PipelineSchedule)) - {"auto"}


@pytest.mark.parametrize(("schedule", "stages"), schedules_trying("chimera"))
def test_a_transformer_goes_from_8_ranks_to_6_to_4_and_back_and_no_loss_nor_weight_changes(
    tmp_path: Path, schedule: str, stages: int
) -> None:
    eight = tuple(range(8))
    acts = (Act(eight, 2), Act((0, 2, 3, 4, 6, 7), 4), Act((7, 2, 4, 3), 6), Act((3, 4, 8, 7, 2, 0, 5, 1), 8))
    script = Script(acts, str(tmp_path), build_transformer_task, spec(schedule, stages), measured=False)
    outcomes = play(script)
    assert_undisturbed(outcomes, build_transformer_task, 8)
    assert all(not any(outcome.redone) for outcome in outcomes if outcome is not None)


@pytest.mark.parametrize(("schedule", "stages"), schedules_trying("1f1b"))
def test_what_reading_and_collating_draw_is_the_same_at_both_ends_of_a_pipeline(
    tmp_path: Path, schedule: str, stages: int
) -> None:
    acts = (Act((0, 1, 2, 3), 3), Act((2, 3), 5), Act((2, 3, 0, 1, 4), 8))
    options = spec(schedule, min(stages, 4)) | {"clip_grad_norm": 0.5}
    options["parallel"]["pipeline"]["micro_batch"] = 2
    outcomes = play(Script(acts, str(tmp_path), build_masked_task, options, measured=False))
    assert_undisturbed(outcomes, build_masked_task, 8, rel=1e-12)


def test_a_mean_over_tokens_is_that_of_one_process_at_any_number_of_ranks(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 2), Act((0, 1, 2), 7), Act((1,), 8), Act((1, 3, 0, 4, 5), 10))
    outcomes = play(Script(acts, str(tmp_path), build_token_chain, spec("1f1b", 2), measured=False))
    assert_undisturbed(outcomes, build_token_chain, 10, rel=1e-12)


def test_any_number_of_ranks_goes_on_and_no_loss_nor_weight_changes(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 2), Act((0, 1, 2), 4), Act((1,), 5), Act((1, 3, 0, 4, 5), 8))
    outcomes = play(Script(acts, str(tmp_path), build_deep_task, spec("chimera")))
    assert_undisturbed(outcomes, build_deep_task, 8)
    assert all(not outcome.warnings and not any(outcome.redone) for outcome in outcomes if outcome is not None)


def test_a_lost_stage_is_taken_from_memory_and_no_loss_nor_weight_changes(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 5, dies=(2,)), Act((3, 0, 1), 9, dies=(1, 0)), Act((3, 4), 10))
    outcomes = play(Script(acts, str(tmp_path), build_deep_task, spec("1f1b")))
    assert_undisturbed(outcomes, build_deep_task, 10)
    last = outcomes[3]
    assert last is not None
    assert last.origins[0] == "scratch"


def test_chimera_loses_no_step_with_a_rank_as_each_stage_is_on_two(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 5, dies=(3,)), Act((2, 0, 1, 4), 7))
    outcomes = play(Script(acts, str(tmp_path), build_deep_task, spec("chimera")))
    assert_undisturbed(outcomes, build_deep_task, 7)
    survivor = outcomes[0]
    assert survivor is not None
    assert (survivor.origins, survivor.redone) == (["scratch", "survivor"], [0, 0])


def test_a_checkpoint_has_each_layer_once_and_any_number_of_ranks_goes_on_from_it(tmp_path: Path) -> None:
    eight = tuple(range(8))  # two replicas
    first = Script((Act(eight, STEPS_OF_EPOCH),), str(tmp_path), build_deep_task, spec("chimera"), finish=True)
    play(first)
    folder = tmp_path / f"step-{STEPS_OF_EPOCH}"
    assert_only_the_first_holders_wrote(folder)
    for number in (1, 3):
        copy = tmp_path / f"for-{number}"
        shutil.copytree(folder, copy / folder.name)
        script = Script((Act(tuple(range(number)), 9),), str(copy), build_deep_task, spec("1f1b"))
        outcomes = play(script)
        assert_undisturbed(outcomes, build_deep_task, 9, after=STEPS_OF_EPOCH)
        assert outcomes[0] is not None
        assert outcomes[0].origins == ["checkpoint"]


def assert_only_the_first_holders_wrote(folder: Path) -> None:
    """Ranks 0 and 1 have all stages of the first replica between them, each in one of its two pipes."""
    files = {path.name: path.stat().st_size for path in folder.glob("*.distcp")}
    assert {name for name, size in files.items() if size} == {"__0_0.distcp", "__1_0.distcp"}
    told = FileSystemReader(folder).read_metadata()
    assert told.storage_data is not None
    assert sum(place.length for place in told.storage_data.values()) == sum(files.values())
    for name, tensor in told.state_dict_metadata.items():
        assert sum(chunk.sizes.numel() for chunk in tensor.chunks) == tensor.size.numel(), name


def test_rank_0_evaluates_the_whole_model_and_gives_the_other_layers_back(tmp_path: Path) -> None:
    ends = STEPS_OF_EPOCH, 2 * STEPS_OF_EPOCH
    acts = (Act((0, 1, 2, 3), ends[0]), Act((0, 1), ends[1]))
    outcomes = play(Script(acts, str(tmp_path), build_evaluated_task, spec("chimera"), finish=True))
    alone = TrainingLoop(build_evaluated_task(), build_spec(clip_grad_norm=0.5))
    expected = {}
    for step in range(1, ends[1] + 1):
        alone.step()
        if step in ends:
            expected[step] = {name: pytest.approx(value) for name, value in alone.evaluations.run().items()}
    assert outcomes[0] is not None
    assert outcomes[0].metrics == expected
    assert_undisturbed(outcomes, build_evaluated_task, ends[1])
