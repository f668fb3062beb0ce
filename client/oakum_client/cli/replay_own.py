"""Sets what the service itself has achieved beside the replay of what it has seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from oakum_client.cli.connection import connect
from oakum_client.cli.output import console, table

if TYPE_CHECKING:
    from oakum_client.own_history import OwnHistory
    from oakum_solver.objectives import Objective
    from oakum_solver.replay.result import ReplayResult

_CAUSES = {
    "productive": "Productive",
    "startup": "Starting up",
    "stalls": "Stalls",
    "late": "Found late",
    "unallocated": "Granted to nobody",
}


def read_own(since_s: float) -> OwnHistory:
    """The running service's own history. Raises `CommandError` where it does not answer."""
    from oakum_client.own_history import read_own_history

    with connect() as client:
        return read_own_history(client, since_s)


def own_document(history: OwnHistory, result: ReplayResult, objective: Objective) -> dict[str, Any]:
    """What the service has achieved, as a JSON document; shares are of the replay, of the bound, and of the idle
    node-time."""
    achieved = history.achieved(objective)
    bound = result.zero_cost_bound * result.achievable
    idle = result.idle_node_hours
    return {
        "began_at": history.began_at,
        "achieved": achieved,
        "efficiency": _share(achieved, result.achievable),
        "of_replay": _share(achieved, result.achieved),
        "of_bound": _share(achieved, bound),
        "node_time": history.node_time,
        "replayed_node_time": {cause: _share(hours, idle) for cause, hours in _replayed(result).items()},
    }


def print_own(document: dict[str, Any]) -> None:
    """Print the comparison for a person."""
    screen = console()
    screen.print()
    listing = table("IDLE NODE-TIME", "SERVICE", "REPLAY", right=("SERVICE", "REPLAY"))
    for cause, name in _CAUSES.items():
        listing.add_row(
            name, _percent(document["node_time"][cause]), _percent(document["replayed_node_time"][cause])
        )
    screen.print(listing)
    screen.print()
    screen.print(
        f"The service itself has reached {_percent(document['of_replay'])} of this replay, and "
        f"{_percent(document['of_bound'])} of what it could have without any stall and start-up."
    )


def _replayed(result: ReplayResult) -> dict[str, float]:
    losses = result.losses
    return {
        "productive": result.productive_node_hours,
        "startup": losses.startup,
        "stalls": losses.grow + losses.shrink + losses.preemption,
        "late": 0.0,
        "unallocated": losses.unallocated,
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(part) and math.isfinite(whole) else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
