"""What is measured of a whole task."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import nn
from torch.utils.data import TensorDataset

import oakum_worker.advice.survey as survey_module
from oakum_worker.advice.survey import Surveyor, candidate_sizes
from oakum_worker.profiling.grid_profile import GridsProfile, NodesGrid
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

LIMIT = 1_000_000


def _task(spec: TrainerSpec) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))
    data = TensorDataset(torch.randn(100, 1, 8, 8), torch.zeros(100, dtype=torch.long))
    return Task(
        model=model,
        dataset=data,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


def test_sizes_fit_the_limit_and_nothing_larger_does(monkeypatch) -> None:
    monkeypatch.setattr(survey_module, "load_task", _task)
    monkeypatch.setattr(Probe, "pass_times", lambda self, size, *_, **__: [1e-3 * (5 + size)])
    spec = TrainerSpec(name="a", entrypoint="a:b", global_batch=200, epochs=1, max_nodes=1)
    told: list[dict] = []
    found = Surveyor(spec, LIMIT, told.append, compiles=False).survey()
    static = found.weight_bytes + found.gradient_bytes + found.optimizer_bytes
    assert 0 < found.largest < 200
    assert all(static + size.working_bytes <= LIMIT for size in found.sizes)
    assert Probe(_task(spec), spec, LIMIT).footprint(found.largest + 1) is None
    assert found.sizes[-1].samples == 100  # two even parts of 200
    assert 100 <= found.largest < 200
    assert [layer.kind for layer in found.layers] == ["Conv2d", "Linear"] * 2
    assert {event["state"] for event in told} == {"begun", "done"}
    checked = Surveyor(spec, LIMIT, told.append, compiles=False).check({"0": "im2col"}, [8])
    assert checked[0]["why"] is None
    assert checked[0]["peak_bytes"] > static + next(s.working_bytes for s in found.sizes if s.samples == 8)
    assert asdict(found)["limit_bytes"] == LIMIT


def test_a_model_that_fits_nowhere_is_measured_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(survey_module, "load_task", _task)
    spec = TrainerSpec(name="a", entrypoint="a:b", global_batch=4, epochs=1, max_nodes=1)
    found = Surveyor(spec, 1000, lambda _: None, compiles=False).survey()
    assert found.largest == 0
    assert found.sizes == []
    assert found.smallest_working_bytes > 0
    assert found.layers


def test_a_spec_with_a_grid_is_given_the_layouts_of_grids(monkeypatch) -> None:
    grid = NodesGrid(1, 1, "none", 1, 4, 1, 1.0, 4.0, 10, fits=True)
    profile = GridsProfile(1, 4, LIMIT, "cpu", 0.0, 1.0, (grid,))
    monkeypatch.setattr(survey_module, "load_task", _task)
    monkeypatch.setattr(survey_module, "profile_grids", lambda spec, memory_bytes: profile)
    for parallel, expected in (({"tensor": {"line": 2}}, [asdict(grid)]), ({}, [])):
        spec = TrainerSpec(name="a", entrypoint="a:b", global_batch=4, epochs=1, max_nodes=2, parallel=parallel)
        assert Surveyor(spec, LIMIT, lambda _: None, compiles=False).survey().layouts == expected


def test_the_present_mini_batch_is_a_candidate_where_it_fits() -> None:
    assert 6 in candidate_sizes(1, 14, 128, 6)
    assert 20 not in candidate_sizes(1, 14, 128, 20)


def test_candidates_are_even_cuts_that_fit() -> None:
    assert candidate_sizes(1, 0, 128) == []
    assert candidate_sizes(1, 14, 128) == [1, 2, 3, 5, 7, 10, 11, 12, 13]  # 10 parts have 13 at most, not 14
    assert candidate_sizes(2, 9, 18) == [2, 3, 4, 5, 6, 9]
    for largest in range(1, 200):
        sizes = candidate_sizes(1, largest, 194)
        assert sizes[0] == 1
        assert sizes[-1] <= largest
        assert -(-194 // sizes[-1]) == -(-194 // largest)
