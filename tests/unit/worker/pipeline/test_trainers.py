"""Pipeline trainers as a whole: what the spec asks for beside the pipeline, and what it asks of the pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional as F
from torch.utils.data import default_collate

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.parallel.chunks import cut_evenly
from oakum_worker.parallel.pipeline.stages import Stage
from oakum_worker.spec_options import PipelineSpec
from oakum_worker.step.replica_batch import ReplicaBatch
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_loops import train_in_turns, train_stages
from pipeline_tasks import build_masked_task
from training_ranks import Points, build_spec


class Labelled(Points):
    """Points of four classes."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # type: ignore[override]
        return super().__getitem__(index)[0], index % 4


def build_classifier() -> Task:
    torch.manual_seed(4)
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)]
    model = nn.Sequential(*layers).double()
    chain = Chain(list(model), lambda batch: batch[0], lambda output, batch: F.cross_entropy(output, batch[1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9, weight_decay=0.01)
    return Task(model=model, dataset=Labelled(), loss=chain, optimizer=optimizer, chain=chain)


STEPS = 7 + 2
"""An epoch of 53 samples in batches of 8, and some of one in batches of 12."""


@pytest.mark.parametrize("schedule", [pytest.param("1f1b", marks=pytest.mark.soak), "chimera"])
def test_lars_smoothed_labels_and_other_batches_go_through_stages(schedule: str) -> None:
    """Each changes the losses, so that none of them can be left out on both sides."""
    options: dict[str, Any] = {
        "lars": {"trust_coefficient": 0.02},
        "label_smoothing": 0.1,
        "batch_schedule": [[1, 12]],
    }
    alone = TrainingLoop(build_classifier(), build_spec(**options))
    expected = [alone.step().loss for _ in range(STEPS)]
    for left_out in options:
        others = {name: value for name, value in options.items() if name != left_out}
        other = TrainingLoop(build_classifier(), build_spec(**others))
        assert [other.step().loss for _ in range(STEPS)] != pytest.approx(expected, rel=1e-3)

    pipeline = {"stages": 4, "schedule": schedule, "micro_batch": 2}
    spec = build_spec(**options, parallel={"pipeline": pipeline})
    losses, loops = train_in_turns(build_classifier, spec, 4, STEPS)
    assert losses == pytest.approx(expected, rel=1e-9)
    whole = dict(alone.task.model.named_parameters())
    held = [(name, p) for loop in loops for name, p in loop.task.model.named_parameters() if not p.is_meta]
    assert {name for name, _ in held} == set(whole)
    for name, parameter in held:
        torch.testing.assert_close(parameter, whole[name], rtol=1e-9, atol=1e-12)


def test_a_micro_batch_that_is_computed_twice_counts_once() -> None:
    """As one is whose layers turn out to draw, and those of threads which share torch's generator."""
    loop = TrainingLoop(build_classifier(), build_spec())
    assert loop.task.chain is not None
    chunks = cut_evenly(range(8), 2)
    work = ReplicaBatch(
        loop.loss_parts.forward, loop.task.chain, loop.loss_parts.sampler, loop.state.cursor, chunks, 8
    )
    for number in (0, 1):
        work.prepare(number)
    losses = [work.loss(torch.zeros(4, 4, requires_grad=True), number).item() for number in (0, 1, 1)]
    assert (work.num_counted, work.loss_sum) == (8, pytest.approx(losses[0] + losses[1]))


def test_first_and_last_stage_have_the_same_batch_whatever_they_compute_between() -> None:
    """As the stages call for it, here each in a loop of its own, through the steps of an epoch."""
    first, last, alone = (TrainingLoop(build_masked_task(), build_spec()) for _ in range(3))
    alone.task.loss = _Keeping(alone.task.chain)
    for _ in range(7):
        num_samples = first.loss_parts.sampler.batch_size(first.state.cursor)
        chunks = cut_evenly(range(num_samples), 4)
        works = []
        for loop, numbers in ((first, (0, 1, 2, 3)), (last, (3, 1, 0, 2))):
            assert loop.task.chain is not None
            work = ReplicaBatch(
                loop.loss_parts.forward,
                loop.task.chain,
                loop.loss_parts.sampler,
                loop.state.cursor,
                chunks,
                num_samples,
            )
            for number in numbers:
                work.prepare(number)
                torch.rand(number)
            works.append(work)
        alone.step()
        for number, chunk in enumerate(chunks):
            inputs, batch = works[0].inputs(number), works[1]._prepared[number][0]
            assert torch.equal(inputs, works[1].inputs(number))
            rows = slice(chunk.positions.start, chunk.positions.stop)
            assert torch.equal(inputs, alone.task.loss.inputs[rows])
            for name, values in alone.task.loss.batch.items():
                assert torch.equal(batch[name], values[rows]), name
        for loop in (first, last):
            loop.state.cursor = alone.state.cursor


class _Keeping:
    """A chain as a task's loss, which keeps what it was last given."""

    def __init__(self, chain: Chain | None) -> None:
        assert chain is not None
        self._chain = chain

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.inputs, self.batch = self._chain.inputs(batch), batch
        return self._chain.end(self._chain.run(range(len(self._chain.layers)), self.inputs), batch)


def test_a_batch_is_read_and_collated_once_and_forgotten_after_its_backward_pass() -> None:
    task = build_classifier()
    made: list[int] = []

    def collate(samples: list[Any]) -> Any:
        made.append(len(samples))
        return default_collate(samples)

    task.collate = collate
    loop = TrainingLoop(task, build_spec())
    assert task.chain is not None
    work = ReplicaBatch(
        loop.loss_parts.forward, task.chain, loop.loss_parts.sampler, loop.state.cursor, cut_evenly(range(8), 2), 8
    )
    stages = [Stage(task.chain, range(0, 3)), Stage(task.chain, range(3, 6), recompute=True)]
    made.clear()
    for number in (0, 1):
        values: Any = None
        for stage in stages:
            values = stage.forward(work, number, values)
    for number in (0, 1):
        gradients: tuple[torch.Tensor, ...] = ()
        for stage in reversed(stages):
            gradients = stage.backward(work, number, gradients)
    assert made == [4, 4]
    assert not work._prepared


@each(
    ("options", "num_pipes", "live"),
    [
        ({"schedule": "zero-bubble-v", "stages": 3}, 1, None),
        ({"schedule": "chimera", "pipes": 4}, 4, None),
        ({"schedule": "message-driven"}, 1, 4),
        ({"schedule": "message-driven", "in_flight": 6}, 1, 6),
    ],
)
def test_a_trainer_has_the_schedule_that_its_spec_asks_for(
    options: dict[str, Any], num_pipes: int, live: int | None
) -> None:
    """Each step has 8 micro-batches."""
    alone = TrainingLoop(build_classifier(), build_spec())
    pipeline = {"stages": 4, "micro_batch": 1} | options
    # Ranks that take turns cannot wait for whichever message comes first.
    train = train_in_turns if live is None else train_stages
    losses, loops = train(build_classifier, build_spec(parallel={"pipeline": pipeline}), 4, 2)
    assert losses == pytest.approx([alone.step().loss for _ in range(2)], rel=1e-9)
    engine: Any = loops[0].assembly.engine
    schedule = engine._state.arrangement.schedule
    asked = options["schedule"] if live is None else "1f1b"
    assert (schedule.name, schedule.num_workers, schedule.num_pipes) == (asked, pipeline["stages"], num_pipes)
    assert live is None or engine._engine.max_live == live


@each(
    ("options", "message"),
    [
        ({"schedule": "chimera", "pipes": 3}, "multiple of 2"),
        ({"schedule": "1f1b", "pipes": 4}, "pipes is for schedule: chimera, not 1f1b: leave it out"),
        ({"schedule": "chimera", "stages": 6, "pipes": 4}, "6 stages do not make 4 pipes: give a multiple"),
        ({"schedule": "chimera", "stages": 3}, "3 stages do not make a chimera: give an even number"),
        ({"in_flight": 4}, "in_flight is for schedule: message-driven, not auto: leave it out"),
        ({"schedule": "message-driven", "in_flight": 0}, "greater than or equal to 1"),
    ],
)
def test_options_of_another_schedule_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PipelineSpec.model_validate(options)
