"""Explains in one clause, with the planner's numbers, why a trainer has n nodes and not more.

The step considered goes to the trainer's next allowed size: n + 1 nodes, or from none to its minimum. A cause in
the trainer itself (its maximum, a flat curve, a stall that outweighs the gain) is named before one in other
trainers.
"""

from __future__ import annotations

from dataclasses import dataclass

from oakum_solver.allocate import Solution
from oakum_solver.named_objectives import Unit
from oakum_solver.objectives import unit
from oakum_solver.plan import Reason, Why
from oakum_solver.pools import Composition
from oakum_solver.value import ValueModel
from oakum_solver.wording import amount, counted, duration

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
        smaller = [_smaller(model, j, composition, 1) for j, composition in enumerate(self.after)]
        self.losses = [a - b for a, b in zip(solution.values, model.values(smaller), strict=True)]
        self.losses_of_many: dict[tuple[int, int], float] = {}
        """(Trainer, nodes) -> what the trainer would lose by giving so many, as far as it was asked for."""
        donors = (j for j, size in enumerate(self.sizes) if size > 0)
        self.donors = sorted(donors, key=lambda j: (self.losses[j], j))
        """Indexes of the trainers with nodes, the one that would lose least by going one size down first."""
        self.runnable = [self._runnable(j) for j in range(len(self.after))] if model.typed else None
        """For each trainer, the pools of which it can use another node; None if every trainer can use every
        pool."""
        self.unit: Unit = unit(self.problem.objective, any(trainer.weight != 1 for trainer in model.trainers))

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
        trainer, size, there = self.model.trainers[j], self.sizes[j], self.problem.cluster_nodes
        # A bundle's minimum is of what can be given together, and its limit says so.
        if size == 0 and there is not None and trainer.min_nodes > there and trainer.bundle == 1:
            text = (
                f"it needs at least {trainer.min_nodes:,} nodes, and the cluster has {counted(there, 'node')}: "
                "lower its min_nodes, or wait until there are more"
            )
            return Reason(Why.BELOW_MINIMUM, text)
        # The limit binds where the trainer has all that it could, or where no number that it may have is there.
        if trainer.limit and (size == trainer.max_nodes or trainer.min_nodes > self.problem.num_nodes):
            return Reason(Why.NO_IDLE_NODE, trainer.limit)
        if size == trainer.max_nodes:
            return Reason(Why.AT_MAXIMUM, f"its maximum is {counted(size, 'node')}")
        if size == self.problem.num_nodes:
            return Reason(Why.NO_IDLE_NODE, self._none_idle(size))
        return self._own_reason(j) or self._cap_reason(j) or self._hosts_reason(j) or self._others_reason(j)

    def _none_idle(self, size: int) -> str:
        other = "other " if size else ""
        if self.problem.withheld:
            return f"no {other}idle node is expected to stay idle for as long as a trainer takes to start there"
        return f"no {other}node is idle"

    def _own_reason(self, j: int) -> Reason | None:
        """The reason in trainer j itself why it is not larger; None if it would gain from its next allowed
        size, were nodes free."""
        step, size = self.steps[j], self.sizes[j]
        more = _more(size, step)
        if self.runnable is not None and not self.runnable[j]:
            restricted = self.model.trainers[j].access is not None
            barred = "its Slurm options allow none of the idle nodes" if restricted else None
            return Reason(Why.NO_IDLE_NODE, barred or "no idle node is of a type that makes it faster")
        if not step.faster:
            return Reason(Why.CURVE_FLAT, f"{more} would not make it faster", step.gross, step.stall)
        if size < self.model.held[j]:
            text = f"{more}, which it has now, would add nothing {self._when()}"
            return Reason(Why.STALL_NOT_WORTH_IT, text, step.gain, step.stall) if step.gain <= 0 else None
        if step.gain > 0:
            return None
        if step.gross > 0:
            text = (
                f"{more} would add {self._amount(step.gross)} {self._when()}, but the stall of the change would "
                f"cost {self._again(step.stall)}"
            )
        elif self.model.problem.terms.departures and len(self.after[j]) > 0:
            text = (
                f"{more} would have to be given back at another time than its other nodes, and that further stall "
                "would cost more than the node adds"
            )
        else:
            ahead = duration(self.problem.look_ahead_s)
            text = f"{more} would take longer to start than the {ahead} that a plan looks ahead"
        return Reason(Why.STALL_NOT_WORTH_IT, text, step.gross, step.stall)

    def _cap_reason(self, j: int) -> Reason | None:
        user = self.model.trainers[j].user
        cap = self.problem.user_caps.get(user) if user is not None else None
        if cap is None:
            return None
        used = sum(n for n, t in zip(self.sizes, self.model.trainers, strict=True) if t.user == user)
        if used + self.steps[j].end - self.sizes[j] <= cap:
            return None
        text = f"{user}'s trainers together have {counted(used, 'node')} and may have at most {cap:,}"
        if cap == 0:
            text = f"{user}'s quota is used up, so {user}'s trainers may have no nodes"
        return Reason(Why.USER_CAP, text, self.steps[j].gain)

    def _hosts_reason(self, j: int) -> Reason | None:
        """That enough slots are free for trainer j to grow, but not enough of them on one node; None where that is
        not so."""
        trainer, size, step = self.model.trainers[j], self.sizes[j], self.steps[j]
        if trainer.bundle == 1 or self.free < step.end - size:
            return None
        given = {node for nodes in (self.solution.grants or {}).values() for node in nodes}
        left = [(len(set(host.nodes) - given), host.size) for host in self.problem.hosts]
        if any(free >= (slots if trainer.bundle == "host" else trainer.bundle) for free, slots in left):
            return None
        needed = "all slots of a node" if trainer.bundle == "host" else f"{trainer.bundle:,} slots of one node"
        most = max((free for free, _ in left), default=0)
        no_more = f"more than {most}" if most else "any"
        text = (
            f"{_more(size, step)} would add {self._amount(step.gain)} {self._when()}, but a fragment of it needs "
            f"{needed}, and of the {self.free:,} free slots no node has {no_more}"
        )
        return Reason(Why.BELOW_NEXT_SIZE, text, step.gain)

    def _others_reason(self, j: int) -> Reason:
        """The reason that lies in other trainers: who has the nodes from which trainer j would gain, or that none
        is free."""
        trainer, size, step = self.model.trainers[j], self.sizes[j], self.steps[j]
        would_add = f"would add {self._amount(step.gain)} {self._when()}"
        if size == 0 and self.free < trainer.min_nodes and trainer.min_nodes > 1:
            text = f"it needs at least {trainer.min_nodes:,} nodes, which {would_add}, but {_free(self.free)}"
            return Reason(Why.BELOW_MINIMUM, text, step.gain)
        if trainer.sizes and 0 < self.free < step.end - size:
            text = (
                f"the next larger size that it may have is {counted(step.end, 'node')}, which {would_add}, but "
                f"{_free(self.free, 'more ')}"
            )
            return Reason(Why.BELOW_NEXT_SIZE, text, step.gain)
        text = f"{_more(size, step)} {would_add}"
        others = [k for k in self.donors if k != j and self._has_for(k, j)]
        if not others:
            text += ", but no node that it can use is free"
            return Reason(Why.NO_IDLE_NODE, text, step.gain)
        donor = next((k for k in others if self._may_give(k, trainer.priority)), others[0])
        other = self.model.trainers[donor]
        if other.priority > trainer.priority:
            text += f", but trainers of a higher priority, such as {other.label}, have every node that it can use"
            return Reason(Why.PRIORITY, text, step.gain, self.losses[donor], other.id)
        if not self._may_give(donor, trainer.priority):
            text += f", but every node that it can use is guaranteed to others, such as {other.label}"
            return Reason(Why.OTHERS_GAIN_MORE, text, step.gain, max(step.gain, self.losses[donor]), other.id)
        loss = self._loss_of(donor, max(1, step.end - size - self.free))
        if loss < step.gain * (1 - _ROUNDING) and not self.solution.optimal:
            text += f", but no better split was found in the {duration(self.problem.time_limit_s)} of the solver"
            return Reason(Why.NO_IDLE_NODE, text, step.gain, loss)
        missed = "it" if step.end == size + 1 else "them"
        if loss < step.gain * (1 - _ROUNDING):
            text += f", but no split in which it has {missed} is worth more in all"
            return Reason(Why.OTHERS_GAIN_MORE, text, step.gain, step.gain, other.id)
        text += f", but {other.label}, which would miss {missed} least, would lose {self._again(loss)}"
        return Reason(Why.OTHERS_GAIN_MORE, text, step.gain, loss, other.id)

    def _loss_of(self, donor: int, nodes: int) -> float:
        """What the trainer `donor` would lose by giving so many nodes, or all where it has fewer."""
        if nodes == 1:
            return self.losses[donor]
        if (donor, nodes) not in self.losses_of_many:
            smaller = _smaller(self.model, donor, self.after[donor], nodes)
            fewer = [*self.after[:donor], smaller, *self.after[donor + 1 :]]
            loss = self.solution.values[donor] - self.model.values(fewer)[donor]
            self.losses_of_many[donor, nodes] = loss
        return self.losses_of_many[donor, nodes]

    def _has_for(self, donor: int, j: int) -> bool:
        """Whether the trainer `donor` has a node that trainer j could use."""
        return self.runnable is None or not self.runnable[j].isdisjoint(self.after[donor])

    def _may_give(self, donor: int, priority: int) -> bool:
        """Whether the trainer `donor` could give a node to a trainer of this priority."""
        other = self.model.trainers[donor]
        keeps = other.guaranteed and self.sizes[donor] <= other.min_nodes
        return other.priority <= priority and not keeps

    def _when(self) -> str:
        return f"in the {duration(self.problem.look_ahead_s)} after the plan"

    def _amount(self, value: float) -> str:
        """A value with the objective's whole unit, as text."""
        return f"{amount(value)} {self.unit}"

    def _again(self, value: float) -> str:
        """A value that stands beside another one in a sentence, as text."""
        return f"{amount(value)} {self.unit.short}"


def _smaller(model: ValueModel, j: int, after: Composition, nodes: int) -> Composition:
    """Trainer j's composition at the next number that it may have of at least so many `nodes` less: nodes that it
    gets in this plan go first, then those of its own that it would give up first. Empty where there is no such
    number."""
    size = sum(after.values())
    smaller = model.trainers[j].fitting(max(0, size - nodes))
    if smaller <= model.held[j]:
        return model.kept(j, smaller)
    remaining = dict(after)
    for pool, count in after.items():
        removed = min(count - model.pools.held[j].get(pool, 0), sum(remaining.values()) - smaller)
        remaining[pool] -= max(0, removed)
    return {pool: count for pool, count in remaining.items() if count}


def _free(count: int, more: str = "") -> str:
    if count == 0:
        return f"no {more}node is free"
    return f"only 1 {more}node is free" if count == 1 else f"only {count:,} {more}nodes are free"


def _more(size: int, step: _Step) -> str:
    """The step's nodes as the subject of a sentence, such as `a third node`."""
    if step.end > size + 1:
        return counted(step.end, "node")
    return f"{_ORDINALS[size]} node" if size < len(_ORDINALS) else f"node number {step.end}"
