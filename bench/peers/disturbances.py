"""The disturbances of a contestant, and the costs of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from peers.contestants import Contestant, Oakum, wait_until

_SETTLED_STEPS = 5
_PATIENCE_S = 180.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Cost:
    """One disturbance's cost."""

    contestant: str
    model: str
    event: str
    gap_s: float
    """From the last finished step before it to the first finished step after it, seen from outside."""
    after_s: float | None
    """From the disturbance to that step; None for a replaced node, which joins when it has started."""
    step_s: float
    """Median step before the disturbance: the part of the gap that is no stall."""
    steps_lost: int
    """Finished steps that were taken again."""
    reported_s: float | None = None
    """The stall as our rank 0 reports it."""


@dataclass(frozen=True)
class Disturbance:
    """Something to do to a contestant of `nodes` nodes that trains on all of them."""

    event: str
    act: Callable[[], None]
    leaves: int
    """Number of nodes on which the contestant trains after the disturbance."""
    restore: Callable[[], None] | None = None
    """Brings the contestant back to full size, if it does not return by itself."""


def disturbances(contestant: Contestant, nodes: int) -> Iterator[Disturbance]:
    """The disturbances of one round: shrink, grow, foreground job, and kills of ranks and of a node."""
    yield Disturbance("shrink", contestant.shrink, nodes - 1)
    yield Disturbance("grow", contestant.grow, nodes)
    if isinstance(contestant, Oakum):
        yield Disturbance("foreground job", lambda: contestant.take_nodes(1, 1.0), nodes)
    for name, rank in (("first", 0), ("middle", nodes // 2), ("last", nodes - 1)):
        yield Disturbance(f"kill -9, {name} rank", partial(contestant.kill_rank, rank), nodes)
    if isinstance(contestant, Oakum):
        yield Disturbance("kill -9, node", lambda: contestant.kill_node(nodes // 2), nodes)
    else:
        yield Disturbance("kill -9, node", lambda: contestant.kill_node(nodes - 1), nodes - 1, contestant.grow)


def settle(contestant: Contestant, nodes: int, since: float = 0.0) -> None:
    """Wait until the contestant has trained some steps on `nodes` nodes, after a switch later than `since`."""

    def settled() -> bool:
        size, steps = contestant.logs.steps_together()
        changed = not since or next(contestant.logs.switches(since), None) is not None
        return changed and size == nodes and steps >= _SETTLED_STEPS

    wait_until(f"{contestant.name} trains on {nodes} nodes", settled, _PATIENCE_S, _LOOK_S)


def cost_of(disturbance: Disturbance, contestant: Contestant, model: str, nodes: int) -> list[Cost]:
    """Carry out a disturbance, wait until training has settled, and return its costs.

    Where a killed node is replaced by hand, the replacement is a second cost, of the kind `grow`.
    """
    step_s = contestant.logs.step_s()
    began = time.time()
    disturbance.act()
    settle(contestant, disturbance.leaves, since=began)
    if disturbance.restore is not None:
        disturbance.restore()
        settle(contestant, nodes, since=time.time())
    reported = contestant.reported_stalls(began) if isinstance(contestant, Oakum) else []
    return [
        Cost(
            contestant=contestant.name,
            model=model,
            event="grow" if number else disturbance.event,
            gap_s=switch.gap_s,
            after_s=None if number else switch.first.at - began,
            step_s=step_s,
            steps_lost=switch.steps_lost,
            reported_s=reported[number] if number < len(reported) else None,
        )
        for number, switch in enumerate(contestant.logs.switches(began))
        # Some ways back to full size take more than one restart: those count as the first's aftermath.
        if number == 0 or switch.first.world_size > switch.last.world_size
    ]
