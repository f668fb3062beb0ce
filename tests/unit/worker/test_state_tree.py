"""States taken apart and put together again."""

import json
import math
from collections import Counter
from typing import Any

import pytest
import torch

from cells import each
from oakum_worker.state.tree import assemble, dismantle, empty_tensors


def through_json(state: Any) -> Any:
    document, tensors = dismantle(state)
    return assemble(json.loads(json.dumps(document)), tensors)


@each(
    "state",
    [
        {"betas": (0.9, 0.999), "params": ["a", "b"], "lr": 0.1 + 0.2, "fused": None, "amsgrad": False},
        {"nested": {"empty": {}, "list": [], "tuple": ()}},
        {3: "integer keys", "$tensor": "a key that looks like ours"},
        {"milestones": Counter({30: 1, 80: 2})},
        {"tiny": 5e-324, "huge": 1.7976931348623157e308, "exact": 2**70},
    ],
)
def test_plain_values_come_back_as_they_were(state: Any) -> None:
    assert through_json(state) == state
    assert type(through_json(state)) is type(state)


def test_values_that_are_not_numbers_come_back_too() -> None:
    state = through_json([math.nan, math.inf])
    assert math.isnan(state[0])
    assert state[1] == math.inf


def test_a_counter_stays_one() -> None:
    assert isinstance(through_json({"milestones": Counter({30: 1})})["milestones"], Counter)


def test_tensors_are_named_by_their_path_and_not_copied() -> None:
    weight, step = torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor(4.0)
    document, tensors = dismantle({"model": {"layer.weight": weight}, "moments": [step]})
    assert list(tensors) == ["model.layer.weight", "moments.0"]
    assert tensors["model.layer.weight"].data_ptr() == weight.data_ptr()
    blank = empty_tensors(json.loads(json.dumps(document)))
    assert [(t.shape, t.dtype) for t in blank.values()] == [((2, 3), torch.bfloat16), ((), torch.float32)]


def test_two_tensors_never_share_a_path() -> None:
    state = {"a": {"b.c": torch.tensor(1)}, "a.b": {"c": torch.tensor(2)}}
    assert through_json(state) == state


def test_a_value_that_cannot_be_carried_is_named() -> None:
    with pytest.raises(TypeError, match=r"scheduler\.milestones\.0 is a object"):
        dismantle({"scheduler": {"milestones": [object()]}})
