"""The time of a forward and backward pass as a line over its samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oakum_solver.errors import ProblemError


@dataclass(frozen=True, slots=True)
class PassTime:
    """T(m) = a + b m for m samples."""

    fixed_s: float
    """a: at least 0."""
    sample_s: float
    """b: above 0."""

    def seconds(self, samples: float) -> float:
        """Seconds of a pass over so many samples."""
        return self.fixed_s + self.sample_s * samples


def fit_pass_time(points: Iterable[tuple[int, float]]) -> PassTime:
    """The line with the least squares of relative errors through points (samples, seconds), a >= 0 and b > 0.

    Raises `ProblemError` without any point of which both numbers are above 0.
    """
    rows = [(samples / seconds, 1 / seconds) for samples, seconds in points if samples > 0 and seconds > 0]
    if not rows:
        raise ProblemError("no pass was timed: give at least one point of samples and seconds above 0")
    # Minimise sum (a v + b u - 1)^2 with u = m / T and v = 1 / T.
    uu, vv, uv = (sum(u * u for u, _ in rows), sum(v * v for _, v in rows), sum(u * v for u, v in rows))
    u1, v1 = sum(u for u, _ in rows), sum(v for _, v in rows)
    determinant = uu * vv - uv * uv
    if determinant > 1e-12 * uu * vv:
        fixed, each = (uu * v1 - uv * u1) / determinant, (vv * u1 - uv * v1) / determinant
        if fixed >= 0 and each > 0:
            return PassTime(fixed, each)
    return PassTime(0.0, u1 / uu)
