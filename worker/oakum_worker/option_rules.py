"""Which of the spec's options go together: one table, and the check that reads it.

An option is written as a user would: `compile` is given where it differs from its default, and
`parallel.data: sharded` where it has that value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from oakum_worker.schedule_table import CHIMERA, MESSAGE_DRIVEN, NAMES, SPLITTING


class OptionRule(Protocol):
    """A condition on a combination of options."""

    def complaint(self, model: BaseModel) -> str | None:
        """What is wrong with the options of a spec or of one of its parts, and what to do; None if they comply."""


@dataclass(frozen=True)
class Excludes(OptionRule):
    """Rule: `option` must not be given together with any of `others`."""

    option: str
    others: tuple[str, ...]
    message: str = "{other} does not go with {option}: leave out one of them"

    def complaint(self, model: BaseModel) -> str | None:
        """The complaint about the first of `others` that is given together with `option`; None if there is
        none."""
        if not _is_given(model, self.option):
            return None
        given = (other for other in self.others if _is_given(model, other))
        return next((self.message.format(option=self.option, other=other) for other in given), None)


@dataclass(frozen=True)
class Needs(OptionRule):
    """Rule: `option` may only be given together with `other`, without which it has no meaning."""

    option: str
    other: str
    message: str
    """The complaint; `{now}` in it stands for the value that the other option's field has."""

    def complaint(self, model: BaseModel) -> str | None:
        """The complaint that `other` is missing; None where it is given or `option` is not."""
        if not _is_given(model, self.option) or _is_given(model, self.other):
            return None
        return self.message.format(now=_value(model, self.other.partition(": ")[0]))


_BOTH = "{option} and {other} are both given: leave out one of them"

SPEC_RULES: tuple[OptionRule, ...] = (
    Excludes("curve", ("curves_by_type",), _BOTH),
    Excludes("script", ("entrypoint",), _BOTH),
    Excludes(
        "script", ("arguments",), "{other} is for entrypoints: leave it out, and set the values in the script"
    ),
    Excludes(
        "script",
        (
            "parallel.data: sharded",
            "parallel.data: map-reduce",
            "parallel.pipeline",
            "parallel.tensor",
            "adaptive_batch",
            "micro_batch",
        ),
        "{other} does not go with a script, whose loop computes whole shares with the whole model: leave it out, "
        "or write a Task and name it as the entrypoint",
    ),
    Excludes(
        "script",
        ("compile", "precision", "label_smoothing"),
        "{other} does not go with a script, whose loop computes the loss itself: leave it out, and use torch's "
        "own (torch.compile, torch.autocast, CrossEntropyLoss(label_smoothing=)) in the script",
    ),
    Excludes(
        "script",
        ("initial",),
        "{other} does not go with a script, which builds its model itself: load the weights there, before "
        "oakum.session(...)",
    ),
    Excludes(
        "script",
        ("evaluate",),
        "{other} does not go with a script, whose loop evaluates by itself: leave it out, and leave the loop "
        "where training is to end early",
    ),
    Needs(
        "mixes_types",
        "curves_by_type",
        "mixes_types says nothing without curves_by_type: add these or leave it out",
    ),
    Excludes(
        "parallel.batch_norm: synchronised",
        ("compile", "adaptive_batch", "parallel.data: sharded", "parallel.pipeline", "parallel.tensor"),
        "{other} does not go with {option}: leave out one of them, or use batch_norm: group",
    ),
    Excludes("batch_schedule", ("adaptive_batch",), _BOTH),
    Excludes(
        "parallel.data: sharded",
        ("compile", "adaptive_batch", "parallel.all_reduce: torus"),
        "{other} is for replicated trainers: leave it out, or {option}",
    ),
    Excludes(
        "parallel.data: map-reduce",
        (
            "parallel.pipeline",
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
        "{other} is for tasks with gradients: leave it out, or {option}",
    ),
    Excludes(
        "parallel.pipeline",
        (
            "compile",
            "adaptive_batch",
            "parallel.data: sharded",
            "parallel.all_reduce: torus",
            "precision: float16",
        ),
    ),
    Excludes(
        "parallel.tensor",
        (
            "compile",
            "adaptive_batch",
            "lars",
            "parallel.data: sharded",
            "parallel.all_reduce: torus",
            "precision: float16",
        ),
    ),
    Excludes(
        "parallel.tensor",
        tuple(f"parallel.pipeline.schedule: {name}" for name in (MESSAGE_DRIVEN, *SPLITTING)),
        "{other} does not go with {option}: the ranks of a grid have to compute in one order, so use one "
        "of " + ", ".join(name for name in NAMES if name not in SPLITTING),
    ),
)
"""Rules of a trainer's spec. The user reads the first complaint."""

PIPELINE_RULES: tuple[OptionRule, ...] = (
    *(
        Needs(option, f"schedule: {name}", f"{option} is for schedule: {name}, not {{now}}: leave it out")
        for option, name in (("pipes", CHIMERA.name), ("in_flight", MESSAGE_DRIVEN))
    ),
)
"""Rules of the spec's part `parallel.pipeline`."""

EVALUATE_RULES: tuple[OptionRule, ...] = (
    Excludes("every_steps", ("every_epochs",), _BOTH),
    Needs("patience", "keep_best", "patience counts evaluations without a better metric: name it with keep_best"),
    Needs("mode: max", "keep_best", "mode says which values of a metric are better: name it with keep_best"),
)
"""Rules of the spec's part `evaluate`."""

_ONE_GRID = "{option} and {other} are both given: a rank is in one grid, so leave out one of them"

TENSOR_RULES: tuple[OptionRule, ...] = (
    Excludes("cube", ("square", "line", "shards"), _ONE_GRID),
    Excludes("square", ("line", "shards"), _ONE_GRID),
    Excludes("line", ("shards",), _ONE_GRID),
)
"""Rules of the spec's part `parallel.tensor`."""


_STATE_SPLITTING = ("parallel.data: sharded", "parallel.pipeline", "parallel.tensor")
"""Options with which each rank has only a part of the trainer's state."""


def splits_state(spec: BaseModel) -> bool:
    """Whether each rank has only a part of the trainer's state: one of the options for that is given."""
    return any(_is_given(spec, option) for option in _STATE_SPLITTING)


def refuse_conflicts(model: BaseModel, rules: Iterable[OptionRule]) -> None:
    """Raise `ValueError` with the complaint of the first rule that the options break."""
    for rule in rules:
        if (complaint := rule.complaint(model)) is not None:
            raise ValueError(complaint)


def _is_given(model: BaseModel, option: str) -> bool:
    path, has_value, value = option.partition(": ")
    found = _value(model, path)
    return bool(found == value if has_value else found != _default(model, path))


def _value(model: BaseModel, path: str) -> Any:
    value: Any = model
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _default(model: BaseModel, path: str) -> Any:
    *parents, name = path.split(".")
    parent = _value(model, ".".join(parents)) if parents else model
    return type(parent).model_fields[name].get_default(call_default_factory=True)
