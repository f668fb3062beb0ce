"""What the load generator has seen of the service."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import quantiles


@dataclass(frozen=True)
class RouteFigures:
    """How long the answers of one route took."""

    route: str
    answers: int
    per_s: float
    p50_ms: float
    p99_ms: float
    longest_ms: float


@dataclass
class Measured:
    """Seconds that answers took, by route, and what went wrong."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    """What went wrong, such as `GET /v1/trainers: 500 ...` -> how often."""
    events: int = 0
    """Events that came over all streams."""
    is_over: bool = False
    """Set when the load ends: what breaks from then on is no error."""

    def answered(self, route: str, seconds: float) -> None:
        """Count an answer."""
        if not self.is_over:
            self.seconds[route].append(seconds)

    def fail(self, route: str, what: str) -> None:
        """Count an error."""
        if not self.is_over:
            self.errors[f"{route}: {what}"] += 1

    def figures(self, run_s: float) -> list[RouteFigures]:
        """The figures of each route over a run of `run_s` seconds, the most used first."""
        rows = sorted(self.seconds.items(), key=lambda item: -len(item[1]))
        return [_figures(route, seconds, run_s) for route, seconds in rows]


def _figures(route: str, seconds: list[float], run_s: float) -> RouteFigures:
    cuts = quantiles(seconds, n=100) if len(seconds) > 1 else seconds * 99
    milliseconds = (round(1e3 * value, 1) for value in (cuts[49], min(cuts[98], max(seconds)), max(seconds)))
    return RouteFigures(route, len(seconds), round(len(seconds) / run_s, 2), *milliseconds)
