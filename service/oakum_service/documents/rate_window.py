"""Measurement windows of a trainer's speed."""

from __future__ import annotations

from typing import NamedTuple


class RateWindow(NamedTuple):
    """One stretch of undisturbed training at one number of nodes: its seconds and its mean rate."""

    seconds: float
    samples_per_s: float
