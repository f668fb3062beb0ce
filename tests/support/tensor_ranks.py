"""The ranks of a grid as threads of a test, and what one process computes of the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.conversion import Conversion, put
from oakum_worker.parallel.tensor.convert import convert
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.tensor.wires import Wires
from pipeline_ranks import in_threads
from turns import in_turns

torch.set_num_threads(1)
Loss = Callable[[nn.Module, Any], torch.Tensor]


def simulate(grid: Grid, function: Callable[[Wires], Any]) -> list[Any]:
    """Run `function(wires)` in one thread for each rank, with groups in memory; returns each rank's result."""
    members = list(range(grid.num_ranks))
    return in_turns(len(members), lambda rank, groups: function(Wires.form(grid, members, rank, groups)))


def over_gloo(grid: Grid, function: Callable[[Wires], Any]) -> list[Any]:
    """As `simulate`, with gloo's groups."""
    members = list(range(grid.num_ranks))
    return in_threads(len(members), lambda rank, groups: function(Wires.form(grid, members, rank, groups)))


@dataclass
class Outcome:
    """What a model computed, put together from all ranks."""

    loss: float
    gradients: dict[str, torch.Tensor]
    received: list[int] = field(default_factory=list)
    """Elements that each rank received."""
    shares: dict[str, list[int]] = field(default_factory=dict)
    """Elements of each parameter that each rank has."""


def compute_alone(model: nn.Module, loss: Loss, batch: Any) -> Outcome:
    """The loss and gradients of one process."""
    model = copy.deepcopy(model)
    value = loss(model, batch)
    value.backward()
    return Outcome(value.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def plan(model: nn.Module, grid: Grid, loss: Loss, batch: Any, num_samples: int) -> Conversion:
    """The conversion of a model."""
    return convert(model, grid, lambda share: loss(model, share(batch)), num_samples)


def compute_on(
    grid: Grid,
    model: nn.Module,
    loss: Loss,
    batch: Any,
    num_samples: int,
    *,
    run: Callable[..., list[Any]] = simulate,
    keep_gathered: bool = False,
) -> Outcome:
    """The loss and gradients of the ranks of a grid, which must agree on blocks that they share to the bit."""
    conversion = plan(model, grid, loss, batch, num_samples)
    locals_ = [conversion.local(model, rank, model.state_dict()) for rank in range(grid.num_ranks)]

    def as_rank(wires: Wires) -> tuple[float, dict[str, Any], int]:
        own = locals_[wires.rank]  # type: ignore[index]
        with computing(wires, num_samples, keep_gathered=keep_gathered) as share:
            value = loss(own, share(batch))
        value.backward()
        return value.item(), {name: p.grad for name, p in own.named_parameters()}, wires.received

    found = run(grid, as_rank)
    assert len({value for value, _, _ in found}) == 1
    return Outcome(
        found[0][0],
        {name: together(conversion, name, [f[1][name] for f in found]) for name in conversion.placements},
        [received for _, _, received in found],
        {
            name: [conversion.block(name, rank).num_elements for rank in range(grid.num_ranks)]
            for name in conversion.placements
        },
    )


def together(conversion: Conversion, name: str, blocks: list[torch.Tensor]) -> torch.Tensor:
    """A whole tensor from the ranks' blocks. Ranks that have the same block must agree on it to the bit."""
    whole = blocks[0].new_full(conversion.placements[name].shape, float("nan"))
    seen: dict[Any, torch.Tensor] = {}
    for rank, values in enumerate(blocks):
        block = conversion.block(name, rank)
        assert torch.equal(seen.setdefault(block, values), values), f"copies of {name} differ"
        put(whole, block, values)
    return whole
