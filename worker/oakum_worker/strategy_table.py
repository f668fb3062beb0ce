"""The strategies by which a trainer's work and state are spread over its ranks: one record for each.

The spec's options and rules, the service, advice, trials and the room that builds trainers read it. It needs no
torch. A new strategy is a record here and a module, or folder, that assembles it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from oakum_worker.given_options import is_given
from oakum_worker.schedule_table import MESSAGE_DRIVEN, NAMES, SPLITTING

_DATA = "parallel.data: "


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to spread a trainer's work and state over its ranks."""

    name: str
    options: tuple[str, ...] = ()
    """The options that ask for it, together, in the form of `given_options`."""
    module: str = ""
    """Full name of the module whose `assemble` builds a trainer's engine, state and keeper; empty: the one of the
    strategy's name in `oakum_worker.strategies`."""
    excludes: tuple[str, ...] = ()
    """Options that do not go with the first of its own."""
    complaint: str = "{other} does not go with {option}: leave out one of them"
    """What a user is told who gives one of them."""
    takes_scripts: bool = False
    """Whether it trains scripts, whose loop computes whole shares with the whole model."""
    splits_state: bool = False
    """Whether each rank has only a part of the state, so that more ranks mean less memory for each."""
    splits_batches: bool = False
    """Whether a rank computes its share of a batch in several parts whatever the spec says of micro-batches."""
    passes_are_collective: bool = False
    """Whether ranks exchange data within a forward pass, so that no rank can repeat one on its own."""
    evaluates_alone: bool = True
    """Whether one process without the trainer's other ranks can evaluate the model."""
    copies_model: bool = False
    """Whether another object is trained than the model that the entrypoint has built."""
    takes_gradients: bool = True
    """Whether parameters are trained by gradients of the loss."""
    saves_memory: str = ""
    """What a user can do, with this strategy in particular, for a rank to need less memory."""


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
    Strategy(
        "map-reduce",
        options=(f"{_DATA}map-reduce",),
        excludes=(
            "parallel.pipeline",
            "parallel.tensor",
            "parallel.all_reduce: torus",
            "parallel.batch_norm: synchronised",
            "parallel.batch_norm: group",
            "compile",
            "adaptive_batch",
            "micro_batch",
            "precision",
            "clip_grad_norm",
            "label_smoothing",
            "lars",
            "warm_up",
        ),
        complaint="{other} is for tasks with gradients: leave it out, or {option}",
        takes_gradients=False,
        saves_memory="cut the data set into smaller blocks",
    ),
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
