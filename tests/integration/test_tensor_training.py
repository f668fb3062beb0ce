"""The transformer of the pipelines' tests, trained on grids: the weights are those of one process.

On squares and cubes, whose ranks are many, it has two blocks in place of eight: blocks are alike, and the second
meets all that a third would.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from block_norms import gradient_norm
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.grids import Grid, Kind
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.randomness.counters import mix
from oakum_worker.randomness.sample_randomness import SampleRandomness
from pipeline_ranks import build_transformer, meeting_at, sentences
from rank_processes import Processes
from tensor_ranks import plan, simulate, together
from turns import in_turns

STEPS, SAMPLES = 20, 8
Trained = tuple[dict[str, torch.Tensor], list[float]]
"""Weights by name, and the norm of each step's gradient."""
CPU = torch.device("cpu")


@lru_cache
def trained_alone(steps: int, dropout: float, num_layers: int = 8) -> Trained:
    """What one process gets."""
    chain = build_transformer(num_layers, dropout)
    model: Any = chain.layers
    norms = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    randomness = SampleRandomness(CPU, always=True)
    for step in range(steps):
        optimizer.zero_grad()
        with randomness.samples(mix(9, step), 0, SAMPLES) as call:
            call(chain, model, sentences(SAMPLES, step)).backward()
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}, norms


class Trainee:
    """A rank that trains its blocks."""

    def __init__(self, grid: Grid, steps: int, dropout: float, num_layers: int = 8) -> None:
        self.steps, self.dropout = steps, dropout
        self.chain = build_transformer(num_layers, dropout)
        self.model: Any = self.chain.layers
        self.conversion = plan(
            self.model, grid, lambda _, batch: self.chain(self.model, batch), sentences(SAMPLES), 8
        )

    def train(
        self, wires: Wires, replica: int = 0, pair: Any = None
    ) -> tuple[dict[str, torch.Tensor], list[float]]:
        """The weights of this rank's blocks, and the norm of each step's gradient.

        `pair` is the group of the ranks that have the same blocks in two replicas, which share each batch.
        """
        own: Any = self.conversion.local(self.model, wires.rank, self.model.state_dict())  # type: ignore[arg-type]
        chain = dataclasses.replace(self.chain, layers=own)
        optimizer = torch.optim.Adam(own.parameters(), lr=0.01)
        norms = []
        randomness = SampleRandomness(CPU, always=True)
        count = SAMPLES if pair is None else SAMPLES // 2
        for step in range(self.steps):
            optimizer.zero_grad()
            batch = sentences(SAMPLES, step)[replica * count :][:count]
            if self.dropout:
                with randomness.samples(mix(9, step), replica * count, count) as call:
                    call(self._backward, wires, chain, batch)
            else:
                self._backward(wires, chain, batch)
            if pair is not None:
                for parameter in own.parameters():
                    pair.allreduce([parameter.grad]).wait()
            norms.append(float(gradient_norm(own.parameters(), wires)))
            optimizer.step()
        return {name: p.detach() for name, p in own.named_parameters()}, norms

    def _backward(self, wires: Wires, chain: Any, batch: torch.Tensor) -> None:
        with computing(wires, len(batch)) as share:
            loss = chain(None, share(batch)) * (len(batch) / SAMPLES)
        loss.backward()


def equals(
    conversion: Conversion, found: list[Any], expected: tuple[dict[str, torch.Tensor], list[float]]
) -> None:
    weights, norms = expected
    for name, whole in weights.items():
        made = together(conversion, name, [rank[0][name] for rank in found])
        assert torch.allclose(made, whole, rtol=0, atol=1e-9), name
    for _, own_norms in found:
        assert own_norms == pytest.approx(norms, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "num_layers"),
    [pytest.param("1d", 8, marks=pytest.mark.soak), pytest.param("2d", 2, marks=pytest.mark.soak), ("3d", 2)],
)
def test_twenty_steps_give_the_weights_and_norms_of_one_process(kind: Kind, num_layers: int) -> None:
    trainee = Trainee(Grid(kind, 2), STEPS, 0.0, num_layers)
    found = simulate(Grid(kind, 2), trainee.train)
    equals(trainee.conversion, found, trained_alone(STEPS, 0.0, num_layers))


def test_two_cubes_share_each_batch_as_replicas() -> None:
    grid = Grid("3d", 2)
    trainee = Trainee(grid, STEPS, 0.0, 2)

    def as_rank(rank: int, groups: Subgroups) -> Any:
        replica, place = divmod(rank, 8)
        wires = Wires.form(grid, range(8 * replica, 8 * replica + 8), rank, groups)
        return trainee.train(wires, replica, groups.form(f"pair-{place}", [place, place + 8]))

    found = in_turns(16, as_rank)
    equals(trainee.conversion, found[:8], trained_alone(STEPS, 0.0, 2))
    equals(trainee.conversion, found[8:], trained_alone(STEPS, 0.0, 2))


def train_with_dropout(rank: int, store: dist.Store) -> Any:
    """A rank in a process of its own: random draws come from a generator that threads would share."""
    trainee = Trainee(Grid("3d", 2), 3, 0.2, 2)
    weights, norms = trainee.train(Wires.form(Grid("3d", 2), range(8), rank, meeting_at(store, rank)))
    return {name: values.numpy() for name, values in weights.items()}, norms


def test_dropout_belongs_to_samples_and_positions_on_a_cube() -> None:
    with Processes(8, train_with_dropout) as ranks:
        found = [
            ({n: torch.from_numpy(v) for n, v in weights.items()}, norms) for weights, norms in ranks.answers()
        ]
    equals(Trainee(Grid("3d", 2), 0, 0.2, 2).conversion, found, trained_alone(3, 0.2, 2))
