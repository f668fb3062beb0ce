"""How often agents report: as often as the service can take it, which depends on how many they are."""

from __future__ import annotations

_SHORTEST_S = 1.0
LONGEST_S = 30.0
"""Longest interval, in seconds, between two reports of an agent."""
_REPORTS_PER_S = 100.0
"""Reports per second of all agents that tell a trainer's progress, and as many again of all others, that leave the
service time for everything else: each costs it about a millisecond."""


def report_interval_s(num_agents: int) -> float:
    """Seconds that each of as many agents leaves between reports without urgent news: 1 s for up to 100 agents,
    and longer the more agents there are, up to 30 s."""
    return min(LONGEST_S, max(_SHORTEST_S, num_agents / _REPORTS_PER_S))


def silence_s(heartbeat_timeout_s: float, num_agents: int) -> float:
    """Seconds without a report after which an agent counts as lost: the setting, and the time by which the
    interval exceeds that of a few agents, twice."""
    return heartbeat_timeout_s + 2 * (report_interval_s(num_agents) - _SHORTEST_S)
