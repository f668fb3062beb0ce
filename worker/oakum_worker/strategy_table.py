"""The strategies by which a trainer's work and state are spread over its ranks: one record for each.

The spec's options and rules, the service, advice, trials and the room that builds trainers read it. It needs no
torch. A new strategy is a folder of `oakum_worker.strategies` with its record, or a record here and a module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from oakum_worker.given_options import is_given
from oakum_worker.schedule_table import MESSAGE_DRIVEN, NAMES, SPLITTING
from oakum_worker.strategy_record import Strategy

_DATA = "parallel.data: "


def _of_folders() -> list[Strategy]:
    """The records of the strategies that are folders of `oakum_worker.strategies`, by name: the `STRATEGY` of
    each."""
    modules = pkgutil.iter_modules([str(Path(__file__).with_name("strategies"))])
    names = [module.name for module in modules if module.ispkg]
    return [importlib.import_module(f"oakum_worker.strategies.{name}").STRATEGY for name in names]


_STRATEGIES = [
    Strategy(
        "tensor-in-stages",
        options=("parallel.tensor", "parallel.pipeline"),
        excludes=tuple(f"parallel.pipeline.schedule: {name}" for name in (MESSAGE_DRIVEN, *SPLITTING)),
        complaint="{other} does not go with {option}: the ranks of a grid have to compute in one order, so use "
        f"one of {', '.join(name for name in NAMES if name not in SPLITTING)}",
        splits_state=True,
        splits_batches=True,
        passes_are_collective=True,
    ),
    Strategy(
        "pipelined",
        options=("parallel.pipeline",),
        excludes=(
            "compile",
            "adaptive_batch",
            "parallel.data: sharded",
            "parallel.all_reduce: torus",
            "precision: float16",
        ),
        splits_state=True,
        splits_batches=True,
    ),
    Strategy(
        "tensor",
        options=("parallel.tensor",),
        excludes=(
            "compile",
            "adaptive_batch",
            "lars",
            "parallel.data: sharded",
            "parallel.all_reduce: torus",
            "precision: float16",
        ),
        splits_state=True,
        splits_batches=True,
        passes_are_collective=True,
    ),
    Strategy(
        "sharded",
        options=(f"{_DATA}sharded",),
        excludes=("compile", "adaptive_batch", "parallel.all_reduce: torus"),
        complaint="{other} is for replicated trainers: leave it out, or {option}",
        splits_state=True,
        passes_are_collective=True,
        evaluates_alone=False,
        copies_model=True,
    ),
    *_of_folders(),
    Strategy(
        "replicated",
        takes_scripts=True,
        saves_memory="shard the state (parallel: {data: sharded})",
    ),
]
"""In the order in which a spec is offered to them; the last one serves every spec."""


def register(strategy: Strategy) -> None:
    """Add a strategy, which is asked before all strategies registered so far. Raises `ValueError` where its
    name is in use."""
    if any(known.name == strategy.name for known in _STRATEGIES):
        raise ValueError(f"there is a strategy {strategy.name!r} already: choose another name")
    _STRATEGIES.insert(0, strategy)


def strategy_of(spec: BaseModel) -> Strategy:
    """The strategy that the spec asks for."""
    return next(one for one in _STRATEGIES if all(is_given(spec, option) for option in one.options))


def strategies() -> tuple[Strategy, ...]:
    """All strategies, in the order in which a spec is offered to them."""
    return tuple(_STRATEGIES)


def options_of(is_meant: Callable[[Strategy], bool]) -> tuple[str, ...]:
    """The options each of which alone asks for a strategy that is meant."""
    return tuple(one.options[0] for one in _STRATEGIES if len(one.options) == 1 and is_meant(one))


def data_choices() -> tuple[str, ...]:
    """The values of `parallel.data` that ask for a strategy."""
    options = options_of(lambda one: one.options[0].startswith(_DATA))
    return tuple(option.removeprefix(_DATA) for option in options)
