"""Options of the trainer spec that do not go together, and what the user is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from oakum_worker.spec import TrainerSpec, explain

LEAST = {"name": "digits", "entrypoint": "digits:task", "global_batch": 64, "epochs": 2}


def complaint(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        TrainerSpec.model_validate(LEAST | changes)
    (line,) = explain(caught.value)
    return line


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"batch_schedule": [[1, 128]], "adaptive_batch": {"largest": 128}},
            "spec: batch_schedule and adaptive_batch are both given: leave out one of them",
        ),
        (
            {"batch_schedule": [[5, 128], [2, 256]]},
            "spec: batch_schedule: epoch 2 follows 5: list the epochs in rising order",
        ),
        (
            {"adaptive_batch": {"largest": 32}},
            "spec: adaptive_batch.largest 32 is below global_batch 64, which is the first and smallest one: "
            "raise it",
        ),
        (
            {"batch_schedule": [[1, 4]], "max_nodes": 8},
            "spec: batch_schedule's smallest batch 4 gives 8 ranks less than one sample each: raise it or "
            "lower max_nodes",
        ),
        (
            {"parallel": {"data": "sharded"}, "compile": True},
            "spec: compile is for replicated trainers: leave it out, or parallel.data: sharded",
        ),
        (
            {"parallel": {"data": "sharded"}, "adaptive_batch": {"largest": 128}},
            "spec: adaptive_batch is for replicated trainers: leave it out, or parallel.data: sharded",
        ),
        (
            {"parallel": {"batch_norm": "synchronised", "data": "sharded"}},
            "spec: parallel.data: sharded does not go with parallel.batch_norm: synchronised: leave out one of "
            "them, or use batch_norm: group",
        ),
        (
            {"parallel": {"data": "sharded", "all_reduce": "torus"}},
            "spec: parallel.all_reduce: torus is for replicated trainers: leave it out, or parallel.data: sharded",
        ),
        (
            {"parallel": {"batch_norm": "synchronised", "pipeline": {}}},
            "spec: parallel.pipeline does not go with parallel.batch_norm: synchronised: leave out one of them, "
            "or use batch_norm: group",
        ),
        ({"warm_up": {"epochs": 0}}, "warm_up.epochs: Input should be greater than 0"),
        ({"label_smoothing": 1.0}, "label_smoothing: Input should be less than 1"),
        ({"precision": "bf16"}, "precision: Input should be 'float32', 'bfloat16' or 'float16'"),
        ({"lars": {"eta": 1}}, "lars.eta: unknown field; remove it or use one of: trust_coefficient, clip"),
    ],
)
def test_what_cannot_be_is_explained(changes: dict[str, Any], expected: str) -> None:
    assert complaint(**changes) == expected


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"compile": True}, "compile"),
        ({"adaptive_batch": {"largest": 128}}, "adaptive_batch"),
        ({"precision": "float16"}, "precision: float16"),
        ({"parallel": {"pipeline": {}, "data": "sharded"}}, "parallel.data: sharded"),
        ({"parallel": {"pipeline": {}, "all_reduce": "torus"}}, "parallel.all_reduce: torus"),
    ],
)
def test_a_pipeline_refuses_what_it_cannot_do(changes: dict[str, Any], name: str) -> None:
    expected = f"spec: {name} does not go with parallel.pipeline: leave out one of them"
    assert complaint(**{"parallel": {"pipeline": {}}} | changes) == expected


@pytest.mark.parametrize(
    ("changes", "num_samples", "size"),
    [
        ({"parallel": {"pipeline": {"micro_batch": 5}}}, 64, 5),
        ({"parallel": {"pipeline": {}}, "micro_batch": 6}, 64, 6),
        ({"parallel": {"pipeline": {"micro_batch": 8}}, "batch_schedule": [[1, 100]]}, 100, 8),
    ],
)
def test_a_pipelines_micro_batch_has_to_divide_every_global_batch(
    changes: dict[str, Any], num_samples: int, size: int
) -> None:
    assert complaint(**changes) == (
        f"spec: a batch of {num_samples} samples cannot be cut into micro-batches of {size}: give a size that "
        "divides it"
    )
    # Its own goes before that of the spec.
    TrainerSpec.model_validate(LEAST | {"parallel": {"pipeline": {"micro_batch": 8}}, "micro_batch": 5})


def test_the_largest_number_of_nodes_is_what_the_smallest_batch_allows() -> None:
    assert TrainerSpec.model_validate(LEAST | {"batch_schedule": [[1, 16]]}).max_nodes == 16
