"""What a pipeline trainer predicts of other numbers of nodes, from its ranks to the planner."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from oakum_service.config import Settings
from oakum_service.control.curves import curves_to_plan_with
from oakum_service.db.engine import Sessions
from oakum_service.db.models.trainers import Trainer
from oakum_worker.chain import Chain
from oakum_worker.channel import News, NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.parallel import link_costs
from oakum_worker.parallel.pipeline import measuring
from oakum_worker.protocol import Phase
from oakum_worker.rank.reporter import ProgressReporter
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_loops import generation_of, train_stages
from scripted_trainer import ScriptedTrainer
from training_ranks import Points, build_spec

PARALLEL = {"pipeline": {"micro_batch": 1}}
SAMPLE_S = 0.002


class Clock(threading.local):
    """A rank's own, on which next to nothing takes time but a slow layer."""

    layers_s = 0.0

    def now_s(self) -> float:
        return self.layers_s + time.perf_counter() / 1000


CLOCK = Clock()


class Slow(nn.Linear):
    """Takes as long for each sample, however many ranks share a processor."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        CLOCK.layers_s += SAMPLE_S * len(values)
        return super().forward(values)


def build_slow_task() -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(Slow(5, 5), Slow(5, 5), Slow(5, 5), Slow(5, 2)).double()
    chain = Chain(list(model), lambda batch: batch[0], lambda output, batch: (output - batch[1]).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Task(model=model, dataset=Points(), loss=chain, optimizer=optimizer, chain=chain)


def told_by(loop: TrainingLoop) -> News:
    """What rank 0 writes to its agent."""
    reading, writing = os.pipe()
    reporter = ProgressReporter(NewsWriter(writing), loop, DurableCheckpoints(Path("/nowhere"), keep=1))
    reporter.enter(generation_of(2))
    reporter.flush()
    with os.fdopen(reading) as pipe:
        return News.model_validate_json(pipe.readline())


def test_what_ranks_predict_is_what_the_planner_plans_with(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "undisturbed_clock", lambda _: CLOCK.now_s)
    monkeypatch.setattr(link_costs, "waiting_clock", lambda _: CLOCK.now_s)
    _, loops = train_stages(build_slow_task, build_spec(max_nodes=4, parallel=PARALLEL), 2, 1)
    predicted = dict(loops[0].assembly.engine.predicted_curve)
    assert predicted[1] == pytest.approx(1 / (4 * SAMPLE_S), rel=0.25)
    assert predicted[2] > 1.5 * predicted[1]

    trainer = ScriptedTrainer(sessions, monkeypatch, max_nodes=4, parallel=PARALLEL)
    trainer.launch("a", "b")
    for name in ("a", "b"):
        trainer.say(name, Phase.READY)
    trainer.turn()
    trainer.switch("a", 1, 0, source="scratch")
    progress = told_by(loops[0]).progress
    assert progress is not None
    trainer.say("a", progress=progress.model_dump(mode="json"))
    trainer.turn()
    with sessions.begin() as session:
        row = session.get_one(Trainer, trainer.id)
        curve = curves_to_plan_with(session, [row], Settings(learn_curves=True, explore_share=0.0))[trainer.id]
    assert {nodes: curve.rate(nodes) for nodes in predicted} == pytest.approx(predicted)
