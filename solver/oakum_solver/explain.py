"""Explains in one clause, with the planner's numbers, why a trainer has n nodes and not more.

The step considered goes to the trainer's next allowed size: n + 1 nodes, or from none to its minimum. A cause in
the trainer itself (its maximum, a flat curve, a stall that outweighs the gain) is named before one in other
trainers.
"""

from __future__ import annotations

from dataclasses import dataclass

from oakum_solver.allocate import Solution
from oakum_solver.objectives import unit
from oakum_solver.plan import Reason, Why
from oakum_solver.pools import Composition
from oakum_solver.value import ValueModel

_ORDINALS = ("a first", "a second", "a third", "a fourth", "a fifth", "a sixth", "a seventh", "an eighth")
_ROUNDING = 1e-6
"""Relative difference below which two values count as equal."""


def explain(model: ValueModel, solution: Solution) -> dict[str, Reason]:
    """Trainer id -> the reason for its size."""
    explained = _Explained(model, solution)
    return {trainer.id: explained.reason(j) for j, trainer in enumerate(model.trainers)}


@dataclass(frozen=True)
class _Step:
    """The step from a trainer's size to its next allowed size. Values are in the objective's unit."""

    end: int
    gain: float
    """Increase of the trainer's value over the look-ahead."""
    gross: float
    """The increase if rescaling had no stall."""
    faster: bool
    """Whether the trainer makes more samples/s after the step."""

    @property
    def stall(self) -> float:
        """The value that is lost in the step's stall: the gain if there were no stalls, minus the gain."""
        return self.gross - self.gain


class _Explained:
    def __init__(self, model: ValueModel, solution: Solution) -> None:
        self.model, self.solution = model, solution
        self.problem = model.problem
        self.after = solution.compositions
        self.sizes = [sum(composition.values()) for composition in self.after]
        self.free = self.problem.num_nodes - sum(self.sizes)
        self.used = self._used()
        self.steps = self._steps()
        smaller = [_one_size_smaller(model, j, composition) for j, composition in enumerate(self.after)]
        self.losses = [a - b for a, b in zip(solution.values, model.values(smaller), strict=True)]
        donors = (j for j, size in enumerate(self.sizes) if size > 0)
        self.donors = sorted(donors, key=lambda j: (self.losses[j], j))
        """Indexes of the trainers with nodes, the one that would lose least by going one size down first."""
        self.runnable = [self._runnable(j) for j in range(len(self.after))] if model.typed else None
        """For each trainer, the pools of which it can use another node; None if every trainer can use every
        pool."""
        weighted = any(trainer.weight != 1 for trainer in model.trainers)
        self.unit = ("weighted " if weighted else "") + unit(self.problem.objective)

    def _used(self) -> dict[int, int]:
        used = dict.fromkeys(range(len(self.model.pools.pools)), 0)
        for composition in self.after:
            for pool, count in composition.items():
                used[pool] += count
        return used

    def _runnable(self, j: int) -> set[int]:
        """Pools of which trainer j could use another node."""
        model, now = self.model, self.after[j]
        more = (model.trainers[j].following(self.sizes[j]) or self.sizes[j] + 1) - self.sizes[j]
        pools = range(len(model.pools.pools))
        return {pool for pool in pools if model.rate(j, {**now, pool: now.get(pool, 0) + more}) > 0}

    def _steps(self) -> list[_Step]:
        model = self.model
        larger = [self._larger(j) for j in range(len(self.after))]
        ends = [sum(composition.values()) for composition in larger]
        samples = [model.samples(j, composition) for j, composition in enumerate(larger)]
        stalls = [
            model.stall_samples(j, more) - model.stall_samples(j, now)
            for j, (more, now) in enumerate(zip(larger, self.after, strict=True))
        ]
        values = model.worths(samples, ends)
        free_values = model.worths([net + lost for net, lost in zip(samples, stalls, strict=True)], ends)
        return [
            _Step(
                end,
                gain=value - now,
                gross=free - now,
                faster=model.rate(j, larger[j]) > model.rate(j, self.after[j]),
            )
            for j, (end, value, free, now) in enumerate(
                zip(ends, values, free_values, self.solution.values, strict=True)
            )
        ]

    def _larger(self, j: int) -> Composition:
        """Trainer j's composition at its next allowed size, with nodes of the usable pool that has most free
        nodes."""
        trainer, now, size = self.model.trainers[j], self.after[j], self.sizes[j]
        end = trainer.following(size)
        pools = self.model.pools.pools
        if not pools or end is None:
            return now
        more = end - size
        pool = max(
            range(len(pools)),
            key=lambda p: (
                self.model.rate(j, {**now, p: now.get(p, 0) + more}) > 0,
                pools[p].size - self.used[p],
                pools[p].size,
            ),
        )
        return {**now, pool: now.get(pool, 0) + more}

    def reason(self, j: int) -> Reason:
        trainer, size = self.model.trainers[j], self.sizes[j]
        if size == trainer.max_nodes:
            return Reason(Why.AT_MAXIMUM, f"its maximum is {_nodes(size)}")
        if size == self.problem.num_nodes:
            return Reason(Why.NO_IDLE_NODE, self._none_idle(size))
        return self._own_reason(j) or self._cap_reason(j) or self._others_reason(j)

    def _none_idle(self, size: int) -> str:
        other = "other " if size else ""
        if self.problem.withheld:
            return f"no {other}idle node is expected to stay idle until a trainer has started up there"
        return f"no {other}node is idle"

    def _own_reason(self, j: int) -> Reason | None:
        """The reason in trainer j itself why it is not larger; None if it would gain from its next allowed
        size, were nodes free."""
        step, size = self.steps[j], self.sizes[j]
        more = _more(size, step)
        if self.runnable is not None and not self.runnable[j]:
            restricted = self.model.trainers[j].access is not None
            usable = "one that its options let it have" if restricted else "of a type that it can use more of"
            return Reason(Why.NO_IDLE_NODE, f"no idle node is {usable}")
        if not step.faster:
            return Reason(Why.CURVE_FLAT, f"{more} would not make it faster", step.gross, step.stall)
        if size < self.model.held[j]:
            text = f"{more} would have been kept, but it gives nodes up in this plan"
            return Reason(Why.STALL_NOT_WORTH_IT, text, step.gain, step.stall) if step.gain <= 0 else None
        if step.gain > 0:
            return None
        if step.gross > 0:
            text = (
                f"{more} would add {self._amount(step.gross)}, but the stall would cost {self._amount(step.stall)}"
            )
        elif self.model.problem.terms.departures and len(self.after[j]) > 0:
            text = f"{more} would leave at another time than its other nodes, which would cost more than it gains"
        else:
            text = f"{more} would still be starting up when the next {self.problem.look_ahead_s:g} s are over"
        return Reason(Why.STALL_NOT_WORTH_IT, text, step.gross, step.stall)

    def _cap_reason(self, j: int) -> Reason | None:
        user = self.model.trainers[j].user
        cap = self.problem.user_caps.get(user) if user is not None else None
        if cap is None:
            return None
        used = sum(n for n, t in zip(self.sizes, self.model.trainers, strict=True) if t.user == user)
        if used + self.steps[j].end - self.sizes[j] <= cap:
            return None
        text = f"{user}'s trainers have {used} of the {cap} nodes that they may have"
        if cap == 0:
            text = f"{user}'s trainers may have no nodes at present: {user}'s quota is used up"
        return Reason(Why.USER_CAP, text, self.steps[j].gain)

    def _others_reason(self, j: int) -> Reason:
        """The reason that lies in other trainers: who has the nodes from which trainer j would gain, or that none
        is free."""
        trainer, size, step = self.model.trainers[j], self.sizes[j], self.steps[j]
        would_add = f"would add {self._amount(step.gain)} {self._when()}"
        if size == 0 and self.free < trainer.min_nodes and trainer.min_nodes > 1:
            text = f"its minimum of {trainer.min_nodes} nodes {would_add}, but only {self.free} are free"
            return Reason(Why.BELOW_MINIMUM, text, step.gain)
        if trainer.sizes and 0 < self.free < step.end - size:
            free = "one more is" if self.free == 1 else f"{self.free} more are"
            text = f"the next number that it can use is {step.end}, which {would_add}, but only {free} free"
            return Reason(Why.BELOW_NEXT_SIZE, text, step.gain)
        text = f"{_more(size, step)} {would_add}"
        others = [k for k in self.donors if k != j and self._has_for(k, j)]
        if not others:
            text += ", but no node that it can use is free"
            return Reason(Why.NO_IDLE_NODE, text, step.gain)
        donor = next((k for k in others if self._may_give(k, trainer.priority)), others[0])
        other = self.model.trainers[donor]
        if other.priority > trainer.priority:
            text += f", but every node has gone to trainers of a higher priority, such as {other.label}"
            return Reason(Why.PRIORITY, text, step.gain, self.losses[donor], other.id)
        if not self._may_give(donor, trainer.priority):
            text += f", but every node that it can use is guaranteed to others, such as {other.label}"
            return Reason(Why.OTHERS_GAIN_MORE, text, step.gain, max(step.gain, self.losses[donor]), other.id)
        loss = self.losses[donor]
        if loss < step.gain * (1 - _ROUNDING):
            text += ", but no better split of the idle nodes was found in the time given"
            return Reason(Why.NO_IDLE_NODE, text, step.gain, loss)
        text += f", but {other.label}, which would miss it least, would lose {self._amount(loss)}"
        return Reason(Why.OTHERS_GAIN_MORE, text, step.gain, loss, other.id)

    def _has_for(self, donor: int, j: int) -> bool:
        """Whether the trainer `donor` has a node that trainer j could use."""
        return self.runnable is None or not self.runnable[j].isdisjoint(self.after[donor])

    def _may_give(self, donor: int, priority: int) -> bool:
        """Whether the trainer `donor` could give a node to a trainer of this priority."""
        other = self.model.trainers[donor]
        keeps = other.guaranteed and self.sizes[donor] <= other.min_nodes
        return other.priority <= priority and not keeps

    def _when(self) -> str:
        return f"in the next {self.problem.look_ahead_s:g} s"

    def _amount(self, value: float) -> str:
        """A value with the objective's unit, as text."""
        number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return f"{number} {self.unit}"


def _one_size_smaller(model: ValueModel, j: int, after: Composition) -> Composition:
    """Trainer j's composition at the next smaller number of nodes that it may have: nodes that it gets in this
    plan go first, then those of its own that it would give up first. Empty where there is no smaller one."""
    size = sum(after.values())
    smaller = model.trainers[j].fitting(size - 1)
    if smaller <= model.held[j]:
        return model.kept(j, smaller)
    remaining = dict(after)
    for pool, count in after.items():
        removed = min(count - model.pools.held[j].get(pool, 0), sum(remaining.values()) - smaller)
        remaining[pool] -= max(0, removed)
    return {pool: count for pool, count in remaining.items() if count}


def _nodes(count: int) -> str:
    return {0: "no node", 1: "1 node"}.get(count, f"{count} nodes")


def _more(size: int, step: _Step) -> str:
    """The step's nodes as the subject of a sentence, such as `a third node`."""
    if step.end > size + 1:
        return _nodes(step.end)
    return f"{_ORDINALS[size]} node" if size < len(_ORDINALS) else f"node number {step.end}"
