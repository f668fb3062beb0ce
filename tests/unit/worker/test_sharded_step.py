"""What a sharded trainer makes of a user's model, and of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cells import each
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.parallel.chunks import equal_chunks
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.template import ModelTemplate, UnitSizes, _units


@given(st.integers(1, 40), st.integers(1, 9), st.none() | st.integers(1, 12))
def test_all_ranks_take_as_many_micro_batches_and_every_sample_once(
    num_samples: int, world_size: int, micro_batch: int | None
) -> None:
    dealt = [equal_chunks(num_samples, rank, world_size, micro_batch) for rank in range(world_size)]
    assert len({len(parts) for parts in dealt}) == 1
    counted = [position for parts in dealt for part in parts for position in part.positions[: part.num_counted]]
    assert counted == list(range(num_samples))
    for part in (part for parts in dealt for part in parts):
        assert part.positions
        assert part.num_counted in (0, len(part.positions))
        assert len(part.positions) <= (micro_batch or num_samples)


def block(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 512)
        self.blocks = nn.ModuleList([block(512), block(512), block(8)])
        self.head = nn.Linear(512, 64, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(5.0))


def units(model: nn.Module, smallest_bytes: int, divided_bytes: int) -> list[str]:
    found = {id(module): name for name, module in model.named_modules()}
    return [found[id(unit)] for unit in _units(model, UnitSizes(smallest_bytes, divided_bytes))]


def test_blocks_that_are_large_enough_are_gathered_on_their_own() -> None:
    assert units(Net(), 1 << 20, 64 << 20) == ["blocks.1", "blocks.0"]


def test_a_block_that_is_too_large_is_divided() -> None:
    assert units(Net(), 1 << 20, 1 << 20) == ["blocks.1.2", "blocks.1.0", "blocks.0.2", "blocks.0.0"]


def test_of_a_block_whose_weights_are_tied_to_others_only_what_is_not_tied_is() -> None:
    model = Net()
    model.blocks[1][0].weight = model.blocks[0][0].weight
    assert units(model, 1, 64 << 20) == ["blocks.2", "blocks.1.2", "blocks.0.2"]


def test_a_template_keeps_structure_buffers_and_ties_and_copies_no_weights() -> None:
    model = Net()
    template = ModelTemplate(model)
    built, mesh = template.build(None, 0, 1)
    assert mesh is None
    assert built.head.weight is built.embed.weight
    assert built.embed.weight is not model.embed.weight
    assert torch.equal(built.get_buffer("table"), model.get_buffer("table"))
    assert built.get_buffer("table") is not model.get_buffer("table")
    assert {name: p.shape for name, p in built.named_parameters()} == template.shapes
    assert template.aliases == {"head.weight": "embed.weight"}
    assert not any(parameter.is_meta for parameter in built.parameters())


def with_scalar() -> nn.Module:
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.ones(()))
    return model


def transposed() -> nn.Module:
    model = nn.Linear(2, 3)
    model.weight = nn.Parameter(torch.zeros(2, 3).T)
    return model


def of_two_types() -> nn.Module:
    model = nn.Linear(2, 2)
    model.bias.data = model.bias.data.to(torch.bfloat16)
    return model


class Unique(nn.Linear):
    def __deepcopy__(self, memo: Any) -> nn.Module:
        raise ValueError("there is only one of me")


@each(
    ("model", "complaint"),
    [
        (with_scalar(), "parameter scale is a scalar"),
        (nn.Sequential(nn.Embedding(4, 2, sparse=True)), "0 has sparse gradients"),
        (transposed(), r"parameter weight of shape \(3, 2\) has the strides \(1, 3\)"),
        (of_two_types(), "weight is torch.float32 and bias is torch.bfloat16"),
        (Unique(2, 2), r"cannot be copied \(ValueError: there is only one of me\)"),
    ],
)
def test_what_cannot_be_sharded_is_said_at_once(model: nn.Module, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        ModelTemplate(model)


def test_an_error_of_a_collective_tells_of_a_lost_rank_and_any_other_is_the_tasks() -> None:
    with pytest.raises(GroupError, match="a rank was lost in the forward pass"), lost_peers("in the forward pass"):
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), lost_peers("in the forward pass"):
        torch.ones(2, 3) @ torch.ones(2, 3)
