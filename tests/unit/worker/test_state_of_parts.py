"""A part of the state finds its tensors on the kind of device on which it gave them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.state import trainer_state
from oakum_worker.state.cursor import Cursor
from oakum_worker.state.tree import assemble, dismantle, empty_tensors
from oakum_worker.task import Stateful, Task
from training_ranks import Points

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs cuda"))


class Kept(Stateful):
    """A part whose state is whatever was last loaded into it, the same tensors, as of many scripts' averages of
    weights."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self.state = state or {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.state = state


def task() -> Task:
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model=model, dataset=Points(), loss=lambda *_: torch.zeros(()), optimizer=optimizer)


def travelled(state: trainer_state.State) -> trainer_state.State:
    """The state as another process gets it: in the host's memory."""
    document, tensors = dismantle(state)
    document = json.loads(json.dumps(document))
    copies = empty_tensors(document)
    for path, tensor in tensors.items():
        if not tensor.is_meta:
            copies[path].copy_(tensor)
    return assemble(document, copies)


def devices_after_a_journey(device: str) -> list[str]:
    part = Kept({"shadow": {"weight": torch.ones(2, device=device)}, "count": torch.ones(2)})
    state = trainer_state.capture_rest(task(), Cursor(), {"average": part})
    newcomer = Kept()
    trainer_state.restore_rest(task(), travelled(state), {"average": newcomer})
    return [newcomer.state["shadow"]["weight"].device.type, newcomer.state["count"].device.type]


@pytest.mark.parametrize("device", ["meta", CUDA])
def test_a_tensor_goes_back_to_an_accelerator_of_its_kind(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_state, "accelerator", lambda: device)
    assert devices_after_a_journey(device) == [device, "cpu"]


def test_where_there_is_none_of_its_kind_it_stays_in_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_state, "accelerator", lambda: None)
    assert devices_after_a_journey("meta") == ["cpu", "cpu"]
