"""Trainers whose members have different numbers of ranks, several of them on one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from counting_rounds import counting_task, spec_fields
from grid_tasks import build_chain_task, build_words_task
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_tasks import build_deep_task
from sharded_ranks import Act, Outcome, Script, play
from training_ranks import build_spec, build_task

torch.set_num_threads(1)

STEPS = 6
ACTS = (
    Act((0, 1, 2, 3), until=2, nodes=((1,), (3,))),
    Act((0, 1, 2, 3, 4, 5, 6, 7), until=4, nodes=((4,), (4,))),
    Act((6, 7), until=5, nodes=((2,),)),
    Act((7, 1, 2), until=STEPS, nodes=((1, 1), (1,))),
)
STAGES = {"stages": 2, "schedule": "1f1b"}
SQUARE = {"square": 2}


def split(**options: Any) -> dict[str, Any]:
    """The fields of a spec that say how ranks share the work."""
    return {"parallel": options}


class Noted(Dataset):
    """A data set that notes which samples are read."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self._samples[index]


def noted(build: Callable[[], Task]) -> Task:
    """The task, with its reads noted."""
    task = build()
    task.dataset = Noted(task.dataset)
    return task


def losses_of(outcomes: list[Outcome]) -> dict[int, float]:
    """Step -> loss, of which each rank has found the same."""
    found: dict[int, float] = {}
    for step, loss in chain.from_iterable(outcome.losses for outcome in outcomes):
        assert found.setdefault(step, loss) == pytest.approx(loss, rel=1e-9)
    return found


@pytest.mark.parametrize(
    ("build", "fields", "reads_once"),
    [
        pytest.param(build_task, split(), True, id="replicated"),
        pytest.param(build_task, split(all_reduce="torus"), True, id="torus"),
        pytest.param(build_task, split(data="sharded"), True, id="sharded"),
        pytest.param(build_deep_task, split(pipeline={**STAGES, "micro_batch": 1}), False, id="pipeline"),
        pytest.param(build_words_task, split(tensor=SQUARE), False, id="grids"),
        pytest.param(build_chain_task, split(tensor=SQUARE, pipeline=STAGES), False, id="grids in stages"),
        pytest.param(counting_task, {**spec_fields(), "epochs": STEPS}, False, id="map-reduce"),
    ],
)
def test_members_of_different_sizes_have_the_losses_and_samples_of_one_process(
    tmp_path: Path, build: Callable[[], Task], fields: dict[str, Any], reads_once: bool
) -> None:
    """1 + 3 ranks, 4 + 4, 2, and 1 + 1 + 1 of which two stand on one node."""
    script = Script(ACTS, str(tmp_path), task=partial(noted, build), spec=fields)
    outcomes = [outcome for outcome in play(script) if outcome is not None]
    alone = TrainingLoop(noted(build), build_spec(**{**fields, "parallel": _of_one_process(fields["parallel"])}))
    expected = {step: pytest.approx(alone.step().loss, rel=1e-9) for step in range(1, STEPS + 1)}
    assert losses_of(outcomes) == expected
    assert outcomes[7].origins == ["survivor"] * 3
    read = Counter(chain.from_iterable(outcome.read for outcome in outcomes))
    assert isinstance(alone.task.dataset, Noted)
    once = Counter(alone.task.dataset.read)
    assert read.keys() == once.keys()
    if reads_once:
        assert read == once


def _of_one_process(parallel: dict[str, Any]) -> dict[str, Any]:
    return parallel if parallel.get("data") == "map-reduce" else {}


def test_a_lost_node_with_two_ranks_leaves_copies_of_both_on_the_other(tmp_path: Path) -> None:
    """Two fragments stand on the node that is left."""
    acts = (Act((0, 1, 2, 3), until=4, dies=(2, 3), nodes=((1, 1), (2,))), Act((0, 1), until=6, nodes=((1, 1),)))
    first = play(Script(acts, str(tmp_path), spec={"checkpoint": {"hot_every_steps": 3}}))[0]
    assert first is not None
    assert (first.origins, first.redone) == (["scratch", "memory"], [0, 1])
    alone = TrainingLoop(build_task(), build_spec())
    assert losses_of([first]) == {step: pytest.approx(alone.step().loss, rel=1e-9) for step in range(1, 7)}
