"""What is known of a strategy without building it, and without torch."""

from __future__ import annotations

from typing import Any

from cells import each
from oakum_worker.memory_advice import memory_advice
from oakum_worker.option_rules import splits_state
from oakum_worker.rehearsal.rehearsing import splits_batches
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategies.registry import strategy_of

PARALLEL: dict[str, dict[str, Any]] = {
    "replicated": {},
    "torus": {"all_reduce": "torus"},
    "sharded": {"data": "sharded"},
    "pipelined": {"pipeline": {}},
    "tensor": {"tensor": {}},
}


def spec(way: str, **fields: Any) -> TrainerSpec:
    required = {"name": "t", "entrypoint": "a:b", "global_batch": 8, "epochs": 1, "max_nodes": 1}
    return TrainerSpec.model_validate(required | {"parallel": PARALLEL[way]} | fields)


@each("way", PARALLEL)
def test_the_options_tell_without_torch_what_the_strategy_says_of_the_state(way: str) -> None:
    assert splits_state(spec(way)) == strategy_of(spec(way)).splits_state


def test_whoever_has_split_the_state_is_not_advised_to() -> None:
    assert {way for way in PARALLEL if "shard the state" in memory_advice(spec(way))} == {"replicated", "torus"}


def test_a_lone_pipeline_or_grid_computes_batches_in_parts_and_no_other_lone_rank_does() -> None:
    assert {way for way in PARALLEL if splits_batches(spec(way))} == {"pipelined", "tensor"}


def test_only_shards_cannot_be_evaluated_by_one_process() -> None:
    assert {way for way in PARALLEL if not strategy_of(spec(way)).evaluates_alone} == {"sharded"}
