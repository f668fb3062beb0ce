"""Verdicts for tests of the fused loops, which would otherwise run only where they are faster."""

from __future__ import annotations

from oakum_worker.recurrent.verdicts import Verdict


def loops_are_faster(*_: object) -> Verdict:
    """In the place of `layers.faster`: the loops compute every size."""
    return Verdict(fused_s=1.0, torch_s=2.0)
