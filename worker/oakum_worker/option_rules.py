"""Which of the spec's options go together: one table, and the check that reads it.

Options are written as in `given_options`. What does not go with a strategy is in the strategy's own record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel

from oakum_worker.given_options import is_given, value_at
from oakum_worker.schedule_table import CHIMERA, MESSAGE_DRIVEN
from oakum_worker.strategy_table import options_of, strategies


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
        if not is_given(model, self.option):
            return None
        given = (other for other in self.others if is_given(model, other))
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
        if not is_given(model, self.option) or is_given(model, self.other):
            return None
        return self.message.format(now=value_at(model, self.other.partition(": ")[0]))


_BOTH = "{option} and {other} are both given: leave out one of them"

SPEC_RULES: tuple[OptionRule, ...] = (
    Excludes("curve", ("curves_by_type",), _BOTH),
    Excludes("script", ("entrypoint",), _BOTH),
    Excludes(
        "script", ("arguments",), "{other} is for entrypoints: leave it out, and set the values in the script"
    ),
    Excludes(
        "script",
        (*options_of(lambda strategy: not strategy.takes_scripts), "adaptive_batch", "micro_batch"),
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
        ("compile", "adaptive_batch", *options_of(lambda strategy: strategy.splits_state)),
        "{other} does not go with {option}: leave out one of them, or use batch_norm: group",
    ),
    Excludes("batch_schedule", ("adaptive_batch",), _BOTH),
    *(Excludes(one.options[0], one.excludes, one.complaint) for one in strategies() if one.excludes),
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


def refuse_conflicts(model: BaseModel, rules: Iterable[OptionRule]) -> None:
    """Raise `ValueError` with the complaint of the first rule that the options break."""
    for rule in rules:
        if (complaint := rule.complaint(model)) is not None:
            raise ValueError(complaint)
