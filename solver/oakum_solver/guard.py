"""The starvation guard: nobody waits for ever because others are always worth more.

Any objective may leave a trainer without nodes as long as others gain more from them. The guard bounds that: who
has been without nodes for `wait_s` is guaranteed nodes (`Trainer.guaranteed`) until it has had some for
`quantum_s`. It does not matter who took its nodes, the plan or a foreground job, and the quantum is made up of as
many pieces as it takes. So is the wait: nodes held for less than a quantum do not end it. As far as idle nodes
last, a trainer thus has nodes for at least `quantum_s` out of every `wait_s + quantum_s`.

The service and the replay fold the same `StarvationGuard.after` over the time they observe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oakum_solver.errors import ProblemError

_CLOCK_ERROR_S = 1e-3
"""What is due within it is due: sums of seconds round."""
_LEAST_S = 0.01


@dataclass(frozen=True)
class Wait:
    """How long a trainer has gone without nodes since it last had a quantum of them."""

    waited_s: float = 0.0
    served_s: float = 0.0
    """Seconds with nodes within that time or, once guaranteed, since then."""


@dataclass(frozen=True)
class StarvationGuard:
    """When a trainer becomes guaranteed, and for how long.

    Raises `ProblemError` for times that are not positive or a quantum that never ends.
    """

    wait_s: float = math.inf
    """Seconds without nodes after which a trainer is guaranteed some; infinite: never."""
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
        """Whether the trainer is not to be left without nodes."""
        return wait.waited_s > 0 and wait.waited_s >= self.wait_s - _CLOCK_ERROR_S

    def after(self, wait: Wait, elapsed_s: float, has_nodes: bool) -> Wait:
        """The wait `elapsed_s` later, in which the trainer had nodes or had none all the time."""
        if has_nodes:
            served_s = wait.served_s + elapsed_s
            done = wait.waited_s == 0 or served_s >= self.quantum_s - _CLOCK_ERROR_S
            return Wait() if done else Wait(wait.waited_s, served_s)
        longer = Wait(wait.waited_s + elapsed_s, wait.served_s)
        if self.guarantees(longer) and not self.guarantees(wait):
            return Wait(longer.waited_s)
        return longer

    def changes_in_s(self, wait: Wait, has_nodes: bool) -> float:
        """Seconds until `guarantees` answers otherwise if the trainer goes on as it is; infinite if never."""
        if self.guarantees(wait):
            return self.quantum_s - wait.served_s if has_nodes else math.inf
        return math.inf if has_nodes else self.wait_s - wait.waited_s
