"""The cases of the pipeline benchmark, and the figures that are measured of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from oakum_worker.parallel.pipeline.formulas import Formula, FormulaTerms
from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.pipeline.schedules import SCHEDULES, build
from oakum_worker.parallel.pipeline.simulation import simulate

Runner = Literal["scheduled", "message-driven", "torch"]


@dataclass(frozen=True)
class Case:
    """A pipeline and how long its stages sleep."""

    schedule: str
    num_workers: int
    num_micro_batches: int
    options: tuple[tuple[str, Any], ...] = ()
    runner: Runner = "scheduled"
    forward_s: float = 0.02
    """Of a micro-batch through a whole worker, however many stages of a pipe it has."""
    backward_ratio: float = 2.0
    """Of a backward pass, in forward passes."""
    layers: int = 3
    """Of each stage."""
    num_replicas: int = 1
    """Side by side, with as many micro-batches each; they sum their gradients."""
    limit: int | None = None
    """Micro-batches on their way at once, for the message-driven."""
    jitter: float = 0.0
    """The mean of what each pass takes longer, as a part of its time; exponentially distributed."""
    num_steps: int = 4
    """After one to warm up."""
    predicted_s: float | None = None
    """Of a step, by the chooser of layouts."""

    def build(self) -> Schedule:
        """The schedule, fastest for these times where there is a choice."""
        return build(
            self.schedule,
            num_workers=self.num_workers,
            num_micro_batches=self.num_micro_batches,
            forward=1.0,
            backward=self.backward_ratio,
            **dict(self.options),
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks of all replicas."""
        return self.num_workers * self.num_replicas

    @property
    def label(self) -> str:
        """The schedule with its options."""
        return " ".join([self.schedule, *(f"{value}" for _, value in self.options)])


@dataclass
class Seen:
    """One worker's measurements of a case, step by step."""

    begins_s: list[float] = field(default_factory=list)
    """When its first computation began, on a clock of all processes."""
    ends_s: list[float] = field(default_factory=list)
    """When its last one ended."""
    walls_s: list[float] = field(default_factory=list)
    """How long the step took, after all were ready."""
    max_live: int = 0


@dataclass(frozen=True)
class Figures:
    """The measured figures of a case."""

    case: Case
    step_s: float
    """Median of the slowest worker's."""
    bubble: float | None
    """Median over the steps of 1 - work / (workers x time from the first to the last computation).

    Work is what forward and backward passes take: messages, autograd and Python count as bubble.
    """
    simulated: float | None
    formula: float | None
    formula_text: str
    live: tuple[int, ...]
    """For each worker the most micro-batches that it kept something of at once, summed over its stages."""
    live_formula: tuple[int, int] | None
    """The fewest and the most that should be."""
    steps_s: tuple[float, ...]


def figures_of(case: Case, seen: Sequence[Seen]) -> Figures:
    """The figures of a case, put together from its workers' measurements."""
    walls = [max(step) for step in zip(*(one.walls_s for one in seen), strict=True)]
    bubble = simulated = formula = None
    if case.runner != "torch":
        work_s = case.num_micro_batches * case.forward_s * (1 + case.backward_ratio)
        bubble = statistics.median(1 - work_s / span for span in _spans(seen))
        simulated = _simulated(case)
        formula = _formula(case)
    return Figures(
        case,
        statistics.median(walls),
        bubble,
        simulated,
        formula.value if formula else None,
        formula.text if formula else "",
        tuple(one.max_live for one in seen),
        _live_formula(case),
        tuple(walls),
    )


def _live_formula(case: Case) -> tuple[int, int] | None:
    is_known = not SCHEDULES[case.schedule].traits.has_pipes or dict(case.options).get("scheme") == "concatenation"
    if not is_known or case.runner != "scheduled" or case.num_micro_batches < case.num_workers:
        return None
    activations = SCHEDULES[case.schedule].activations
    return None if activations is None else activations(FormulaTerms(case.num_workers, case.num_micro_batches))


def _simulated(case: Case) -> float:
    """The bubble ratio, with times of one stage in units of its forward pass."""
    schedule, backward = case.build(), case.backward_ratio
    inputs = weights = backward / 2
    behind = schedule.num_stages - 1
    simulation = simulate(
        schedule, 1.0, backward, inputs=[0.0] + [inputs] * behind, weights=[backward] + [weights] * behind
    )
    work = case.num_micro_batches * schedule.num_stages * (1 + backward)
    return 1 - work / (simulation.makespan * case.num_workers)


def _spans(seen: Sequence[Seen]) -> list[float]:
    begins = zip(*(one.begins_s for one in seen), strict=True)
    ends = zip(*(one.ends_s for one in seen), strict=True)
    return [max(end) - min(begin) for begin, end in zip(begins, ends, strict=True)]


def _formula(case: Case) -> Formula | None:
    if case.backward_ratio not in (1.0, 2.0):
        return None
    options = {name: value for name, value in case.options if name in ("stages_per_worker", "num_pipes")}
    kind = SCHEDULES[case.schedule]
    options.setdefault("stages_per_worker", kind.traits.stages_per_worker)
    if (
        dict(case.options).get("scheme") == "concatenation"
        and case.backward_ratio == 2
        and (case.num_micro_batches > case.num_workers)
    ):
        return None
    backward: Any = int(case.backward_ratio)
    return kind.bubble(FormulaTerms(case.num_workers, case.num_micro_batches, backward=backward, **options))
