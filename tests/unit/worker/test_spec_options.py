"""Options of the trainer spec that do not go together, and what the user is told."""

from __future__ import annotations

import functools
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from cells import each
from oakum_worker.option_rules import PIPELINE_RULES, SPEC_RULES, TENSOR_RULES
from oakum_worker.spec import TrainerSpec, explain

LEAST = {"name": "digits", "entrypoint": "digits:task", "global_batch": 64, "epochs": 2}


def complaint(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        TrainerSpec.model_validate(LEAST | changes)
    (line,) = explain(caught.value)
    return line


@each(
    ("changes", "allowed"),
    [
        ({}, ()),
        ({"sizes": [2, 4, 8]}, (2, 4, 8)),
        ({"sizes": [2, 4, 8], "max_nodes": 4}, (2, 4)),
        ({"sizes": "powers_of_two"}, (1, 2, 4, 8, 16, 32, 64)),
        ({"sizes": "powers_of_two", "ranks_per_node": 3}, (1, 2, 4, 8, 16)),
        ({"sizes": "powers_of_two", "min_nodes": 2, "max_nodes": 8}, (2, 4, 8)),
    ],
)
def test_the_bounds_follow_from_the_sizes(changes: dict[str, Any], allowed: tuple[int, ...]) -> None:
    spec = TrainerSpec.model_validate(LEAST | changes)
    assert spec.allowed_sizes == allowed
    assert (spec.min_nodes, spec.max_nodes) == ((allowed[0], allowed[-1]) if allowed else (1, 64))
    assert TrainerSpec.model_validate(spec.model_dump(mode="json")) == spec


@each(
    ("changes", "expected"),
    [
        (
            {"description": "a try"},
            "unknown field 'description': did you mean `notes`?",
        ),
        (
            {"tags": ["a", "Sweep 3"]},
            "tags.1: 'Sweep 3' is not a valid tag: use 1 to 40 lower-case letters, digits and hyphens, beginning "
            "and ending with a letter or digit",
        ),
        (
            {"notes": "a\u2066b"},
            "notes: U+2066 at character 1 cannot be seen, or turns others round: leave it out",
        ),
        (
            {"batch_schedule": [[1, 128]], "adaptive_batch": {"largest": 128}},
            "spec: batch_schedule and adaptive_batch are both given: leave out one of them",
        ),
        (
            {"notify": [{"webhok": "https://example.org"}]},
            "unknown field 'notify.0.webhok': did you mean `notify.0.webhook`?",
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
        ({"sizes": [1, 4, 2]}, "sizes: 2 nodes follow 4: list the numbers in rising order, each once"),
        ({"sizes": "even"}, "sizes: 'even' should be 'any' or 'powers_of_two' or a valid tuple"),
        (
            {"sizes": [2, 4], "min_nodes": 1},
            "spec: min_nodes 1 is not among sizes (2, 4): give one of these, or leave min_nodes out",
        ),
        (
            {"sizes": "powers_of_two", "max_nodes": 24},
            "spec: max_nodes 24 is not among sizes (powers_of_two): give one of these, or leave max_nodes out",
        ),
        (
            {"sizes": [1, 2, 4], "min_nodes": 4, "max_nodes": 2},
            "spec: min_nodes 4 is above max_nodes 2: lower min_nodes or raise max_nodes",
        ),
        (
            {"sizes": [1, 128]},
            "spec: global_batch 64 gives 128 ranks less than one sample each: raise it or lower max_nodes",
        ),
        (
            {"slurm": {"constraint": "a&b|c"}},
            "slurm.constraint: 'a&b|c' is not a constraint that Oakum plans with: give a feature, or several "
            "joined by & or by |, not both",
        ),
        (
            {"slots_per_fragment": 4, "min_nodes": 5, "max_nodes": 7},
            "spec: slots_per_fragment 4: no number from min_nodes 5 to max_nodes 7 is a multiple of 4: such "
            "numbers count slots, and each fragment has 4",
        ),
        (
            {"slots_per_fragment": 2, "sizes": [1, 3, 5]},
            "spec: slots_per_fragment 2: no number from min_nodes 1 to max_nodes 5 among sizes is a multiple of "
            "2: such numbers count slots, and each fragment has 2",
        ),
        ({"warm_up": {"epochs": 0}}, "warm_up.epochs: Input should be greater than 0"),
        ({"label_smoothing": 1.0}, "label_smoothing: Input should be less than 1"),
        ({"precision": "bf16"}, "precision: Input should be 'float32', 'bfloat16' or 'float16'"),
        (
            {"lars": {"eta": 1}},
            "unknown field 'lars.eta': remove it, or use one of: trust_coefficient, clip",
        ),
        (
            {"parallel": {"pipeline": {"stages": "many"}}},
            "parallel.pipeline.stages: 'many' should be a valid integer or 'auto'",
        ),
        ({"lr": 0.1}, "unknown field 'lr': remove it; it belongs in the Task that the entrypoint returns"),
        ({"nonsense": 1}, "unknown field 'nonsense': remove it, or see the fields in docs/trainer/README.md"),
    ],
)
def test_what_cannot_be_is_explained(changes: dict[str, Any], expected: str) -> None:
    assert complaint(**changes) == expected


@each(
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


@each(
    ("changes", "name"),
    [
        ({"compile": True}, "compile"),
        ({"adaptive_batch": {"largest": 128}}, "adaptive_batch"),
        ({"lars": {}}, "lars"),
        ({"precision": "float16"}, "precision: float16"),
        ({"parallel": {"tensor": {}, "data": "sharded"}}, "parallel.data: sharded"),
        ({"parallel": {"tensor": {}, "all_reduce": "torus"}}, "parallel.all_reduce: torus"),
    ],
)
def test_a_grid_refuses_what_it_cannot_do(changes: dict[str, Any], name: str) -> None:
    expected = f"spec: {name} does not go with parallel.tensor: leave out one of them"
    assert complaint(**{"parallel": {"tensor": {}}} | changes) == expected


@each("schedule", ["message-driven", "zero-bubble", "zero-bubble-v"])
def test_grids_in_stages_need_one_order(schedule: str) -> None:
    assert complaint(parallel={"tensor": {"cube": 2}, "pipeline": {"schedule": schedule}}) == (
        f"spec: parallel.pipeline.schedule: {schedule} does not go with parallel.tensor: the ranks of a grid "
        "have to compute in one order, so use one of gpipe, 1f1b, interleaved, chimera"
    )


@each(
    ("grid", "expected"),
    [
        (
            {"cube": 2, "line": 4},
            "parallel.tensor: cube and line are both given: a rank is in one grid, so leave out one of them",
        ),
        (
            {"square": 2, "line": 4},
            "parallel.tensor: square and line are both given: a rank is in one grid, so leave out one of them",
        ),
        ({"cube": 1}, "parallel.tensor.cube: Input should be greater than or equal to 2"),
        ({"sides": 2}, "unknown field 'parallel.tensor.sides': remove it, or use one of: "),
    ],
)
def test_a_trainer_has_one_grid(grid: dict[str, Any], expected: str) -> None:
    assert complaint(parallel={"tensor": grid}).startswith(expected)


@each(
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


@each("rules", [SPEC_RULES, PIPELINE_RULES, TENSOR_RULES], ids=["spec", "pipeline", "tensor"])
def test_every_option_of_the_table_is_a_field_that_the_spec_has(rules: tuple[Any, ...]) -> None:
    """A misspelt one would be an error only for whoever gives its neighbours."""
    pipeline, tensor = (
        TrainerSpec.model_validate(LEAST | {"parallel": {part: {}}}) for part in ("pipeline", "tensor")
    )
    model = {SPEC_RULES: pipeline, PIPELINE_RULES: pipeline.parallel.pipeline}.get(rules, tensor.parallel.tensor)
    for rule in rules:
        for option in (rule.option, *getattr(rule, "others", [getattr(rule, "other", rule.option)])):
            *parents, name = option.partition(": ")[0].split(".")
            part = functools.reduce(getattr, parents, model)
            field = type(part).model_fields[name]
            if ": " in option:
                assert option.partition(": ")[2] in get_args(field.annotation)
