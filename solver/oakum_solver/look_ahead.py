"""How far ahead a plan counts its gains, where nobody has set it: one rule for the service and for replays.

A gain pays for a stall only while the plan lasts, which is a fraction of a hole's life.
"""

from __future__ import annotations

import math

from oakum_solver.wording import duration

SHARE = 0.1
"""Of the time for which idle nodes are expected to stay idle."""
BOUNDS_S = (120.0, 1800.0)
"""Least and largest look-ahead in seconds; the least only where holes last as long."""
_LEAST_S = 1.0


def automatic_look_ahead_s(mean_rest_s: float | None) -> float:
    """The look-ahead in seconds where idle nodes are expected to stay idle for `mean_rest_s` seconds on average;
    the longest where nothing is known of that (None), or no end is expected (infinite)."""
    shortest_s, longest_s = BOUNDS_S
    if mean_rest_s is None:
        return longest_s
    return max(_LEAST_S, min(longest_s, max(SHARE * mean_rest_s, min(shortest_s, mean_rest_s))))


def automatic_look_ahead_reason(mean_rest_s: float | None) -> str:
    """Why the automatic look-ahead is what it is, as one sentence."""
    ahead = f"The plan looks {duration(automatic_look_ahead_s(mean_rest_s))} ahead"
    if mean_rest_s is None:
        return f"{ahead}: too few idle times had ended to tell how long nodes stay idle."
    if mean_rest_s == math.inf:
        return f"{ahead}: no idle node was expected to be taken."
    return f"{ahead}: idle nodes were expected to stay idle for another {duration(mean_rest_s)} on average."
