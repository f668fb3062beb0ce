"""What is known of a strategy without building it, and without torch, and where it is known from."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import oakum_service
import oakum_worker
from cells import each
from oakum_worker.memory_advice import memory_advice
from oakum_worker.rehearsal.rehearsing import splits_batches
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import options_of, strategies, strategy_of

PARALLEL: dict[str, dict[str, Any]] = {
    "replicated": {},
    "torus": {"all_reduce": "torus"},
    "sharded": {"data": "sharded"},
    "map-reduce": {"data": "map-reduce"},
    "pipelined": {"pipeline": {}},
    "tensor": {"tensor": {}},
}
ASKING = options_of(lambda strategy: strategy.name in PARALLEL)
WITH_GRADIENTS = ["lower micro_batch", "compute activations again"]


def spec(way: str, **fields: Any) -> TrainerSpec:
    required = {"name": "t", "entrypoint": "a:b", "global_batch": 8, "epochs": 1, "max_nodes": 1}
    return TrainerSpec.model_validate(required | {"parallel": PARALLEL[way]} | fields)


@each("way", [way for way in PARALLEL if way != "torus"])
def test_a_spec_gets_the_strategy_that_it_asks_for(way: str) -> None:
    assert strategy_of(spec(way)).name == way


@each(("one", "other"), [(one, other) for one in ASKING for other in ASKING if one < other])
def test_two_strategies_that_are_asked_for_are_one_of_both_or_refused(one: str, other: str) -> None:
    """Or one of them would be ignored without a word."""
    given: dict[str, Any] = {}
    for option in (one, other):
        name, _, value = option.removeprefix("parallel.").partition(": ")
        if name in given:
            return  # two values of one field
        given[name] = value or {}
    try:
        found = strategy_of(spec("replicated", parallel=given))
    except ValidationError:
        return
    assert {*found.options} == {one, other}


@each("way", PARALLEL)
def test_a_script_gets_no_strategy_whose_passes_its_loop_does_not_know(way: str) -> None:
    fields = {"entrypoint": "", "script": "train.py"}
    if strategy_of(spec(way)).takes_scripts:
        assert spec(way, **fields).script == "train.py"
        return
    with pytest.raises(ValidationError, match="does not go with a script"):
        spec(way, **fields)


def names_map_reduce(path: Path) -> bool:
    """Whether a file imports anything of MapReduce, or has the strategy's name in a string."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and "map_reduce" in (node.module or ""):
            return True
        if isinstance(node, ast.Constant) and node.value in ("map-reduce", "parallel.data: map-reduce"):
            return True
    return False


def test_a_strategy_is_a_record_and_folders_of_its_own() -> None:
    """Shown by rounds of MapReduce, whose record is in their folder: no other file of the worker or the service
    knows them."""
    folders = [Path(package.__path__[0]) for package in (oakum_worker, oakum_service)]
    files = [path for folder in folders for path in folder.rglob("*.py") if names_map_reduce(path)]
    assert {path.name for path in files if "map_reduce" not in path.parts} == set()


def test_records_are_found_without_torch() -> None:
    """Those of folders, too, whose modules the service does not import for anything else."""
    code = (
        "import sys; from oakum_worker.strategy_table import strategies\n"
        "assert 'map-reduce' in {one.name for one in strategies()}; sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@each("way", PARALLEL)
def test_nobody_is_advised_to_what_the_spec_then_refuses(way: str) -> None:
    advice, strategy = memory_advice(spec(way)), strategy_of(spec(way))
    assert [told in advice for told in WITH_GRADIENTS] == [strategy.takes_gradients] * 2
    assert ("shard the state" in advice) == (way in ("replicated", "torus"))


def test_a_lone_pipeline_or_grid_computes_batches_in_parts_and_no_other_lone_rank_does() -> None:
    assert {way for way in PARALLEL if splits_batches(spec(way))} == {"pipelined", "tensor"}


def test_only_shards_cannot_be_evaluated_by_one_process() -> None:
    assert {one.name for one in strategies() if not one.evaluates_alone} == {"sharded"}
