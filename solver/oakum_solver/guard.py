"""The starvation guard: no trainer waits for ever because other trainers are always worth more.

Any objective may leave a trainer without nodes as long as others gain more from them. The guard limits that: a
trainer that has been without nodes for `wait_s` seconds is guaranteed its minimum (`PlannedTrainer.guaranteed`)
until it has had nodes for `quantum_s` seconds in all. It does not matter whether the plan or a foreground job took
its nodes. Both times add up over interruptions: having nodes for less than a quantum does not reset the wait. As
long as there are enough idle nodes, a trainer so has nodes for at least `quantum_s` out of every
`wait_s + quantum_s` seconds. Where there are fewer, guarantees are kept in the order in which they began. That
order stays, so nobody is interrupted within its quantum for somebody who waits as well, and nobody is passed over
for ever.

The service and the replay both call `StarvationGuard.after` for each interval that they observe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oakum_solver.errors import ProblemError

_CLOCK_ERROR_S = 1e-3
"""Tolerance for times that are sums of rounded intervals."""
_LEAST_S = 0.01


@dataclass(frozen=True)
class Wait:
    """A trainer's waiting as the starvation guard counts it: seconds without nodes, and seconds with them, since
    it last had nodes for a whole quantum."""

    waited_s: float = 0.0
    served_s: float = 0.0
    """Seconds with nodes in the same period; once the trainer is guaranteed, seconds with nodes since then."""


@dataclass(frozen=True)
class StarvationGuard:
    """The rule by which waiting trainers are guaranteed nodes, and by which the guarantee ends. Raises
    `ProblemError` for times below 0.01 s or an infinite quantum."""

    wait_s: float = math.inf
    """Seconds without nodes after which a trainer is guaranteed its minimum; infinite switches the guard off."""
    quantum_s: float = 600.0
    """Seconds with nodes that end the guarantee."""

    def __post_init__(self) -> None:
        if not self.wait_s >= _LEAST_S:
            raise ProblemError(
                f"the starvation guard's wait_s is {self.wait_s}: expected {_LEAST_S} s or more, or inf for none"
            )
        if not _LEAST_S <= self.quantum_s < math.inf:
            raise ProblemError(
                f"the starvation guard's quantum_s is {self.quantum_s}: expected {_LEAST_S} s or more, not inf"
            )

    def guarantees(self, wait: Wait) -> bool:
        """Whether a trainer with this wait has waited for `wait_s`, so that it is guaranteed its minimum of nodes
        now."""
        return wait.waited_s > 0 and wait.waited_s >= self.wait_s - _CLOCK_ERROR_S

    def guaranteed_for_s(self, wait: Wait) -> float:
        """For how many seconds a trainer with this wait has been guaranteed its minimum; 0 where it is not."""
        return max(0.0, wait.waited_s - self.wait_s) + wait.served_s if self.guarantees(wait) else 0.0

    def after(self, wait: Wait, elapsed_s: float, has_nodes: bool) -> Wait:
        """The wait after `elapsed_s` more seconds, during all of which the trainer had nodes or had none."""
        if has_nodes:
            served_s = wait.served_s + elapsed_s
            done = wait.waited_s == 0 or served_s >= self.quantum_s - _CLOCK_ERROR_S
            return Wait() if done else Wait(wait.waited_s, served_s)
        longer = Wait(wait.waited_s + elapsed_s, wait.served_s)
        if self.guarantees(longer) and not self.guarantees(wait):
            return Wait(longer.waited_s)
        return longer

    def changes_in_s(self, wait: Wait, has_nodes: bool) -> float:
        """Seconds until `guarantees` gives another answer, if the trainer goes on to have nodes (`has_nodes`) or
        to lack them; infinite if it never does."""
        if self.guarantees(wait):
            return self.quantum_s - wait.served_s if has_nodes else math.inf
        return math.inf if has_nodes else self.wait_s - wait.waited_s
