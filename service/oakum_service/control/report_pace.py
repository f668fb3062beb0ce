"""How often agents report: as often as the service can take it, which depends on how many they are."""

from __future__ import annotations

_SHORTEST_S = 1.0
LONGEST_S = 15.0
"""Longest interval, in seconds, between two reports of an agent."""
_REPORTS_PER_S = 400.0
"""Reports per second, of all agents together, that leave the service time for everything else."""


def report_interval_s(num_agents: int) -> float:
    """Seconds that an agent leaves between reports without urgent news: 1 s for up to 400 agents, and longer the
    more agents there are, up to 15 s."""
    return min(LONGEST_S, max(_SHORTEST_S, num_agents / _REPORTS_PER_S))


def silence_s(heartbeat_timeout_s: float, num_agents: int) -> float:
    """Seconds without a report after which an agent counts as lost: the setting, and the time by which the
    interval exceeds that of a few agents, twice."""
    return heartbeat_timeout_s + 2 * (report_interval_s(num_agents) - _SHORTEST_S)
