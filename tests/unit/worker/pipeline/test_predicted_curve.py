"""When a trainer's scalability curve is predicted: that takes long, so not within a step, and once for all."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline import arranging
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.pipeline.layouts import choose
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from training_ranks import Points, build_spec

SPEC = build_spec(parallel={"pipeline": {}}, max_nodes=8)


def build_task() -> Task:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)]
    model = nn.Sequential(*layers).double()
    chain = Chain(layers, lambda batch: batch[0], lambda output, batch: mse_loss(output, batch[1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model=model, dataset=Points(), loss=chain, optimizer=optimizer, chain=chain)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the numbers of ranks for which layouts are searched."""
    searched: list[int] = []
    search = choose

    def counted(num_ranks: int, *arguments: Any) -> Any:
        searched.append(num_ranks)
        return search(num_ranks, *arguments)

    monkeypatch.setattr(arranging, "choose", counted)
    return searched


def test_it_is_predicted_anew_only_when_other_measurements_are_agreed_on(searches: list[int]) -> None:
    arranger = Arranger(build_task(), SPEC)
    arranger.measure_model()
    alone = arranger.predicted_curve()
    told = json.loads(json.dumps(arranger.measurements))
    arranger.agree([told, told])
    assert arranger.predicted_curve() == alone
    assert searches == [*range(1, 9)]
    arranger.note_links(LinkCosts(latency_s=1.0, bandwidth_bytes_per_s=1.0))
    arranger.predicted_curve()
    assert searches == [*range(1, 9)] * 2


def test_no_step_waits_for_it(searches: list[int]) -> None:
    loop = TrainingLoop(build_task(), SPEC)
    assert loop.assembly.state is not None
    loop.assembly.state.lay_out(None, 0, 1, lambda document: [document])  # which measures the layers
    loop.step()
    assert set(searches) == {1}
    assert loop.assembly.engine.predicted_curve
    assert searches[-7:] == [*range(2, 9)]


@each("memory_bytes", [100, 1500, 1 << 30])
def test_who_has_predicted_it_arranges_as_who_has_not(memory_bytes: int) -> None:
    """One rank alone predicts it, and all have to choose alike, also where nothing fits."""
    spec = build_spec(parallel={"pipeline": {"memory_bytes": memory_bytes}}, max_nodes=8)
    reporter, newcomer = Arranger(build_task(), spec), Arranger(build_task(), spec)
    reporter.measure_model()
    reporter.predicted_curve()
    newcomer.agree([reporter.measurements])
    for num_ranks in reversed(range(1, 9)):
        assert newcomer.layout(num_ranks) == reporter.layout(num_ranks)
