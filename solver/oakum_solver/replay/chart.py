"""A chart of a report: a figure for Plotly, and a sentence that says what it shows.

Colours are names from the page's style sheet, such as `var(--used)`, and the page's script inserts their values,
so that one figure serves the light, the dark and the printed page. The values are those of Okabe and Ito
(jfly.uni-koeln.de/color), which colour-blind people can tell apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Figure = dict[str, Any]

LEGEND_ABOVE = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


@dataclass(frozen=True)
class Chart:
    """One chart of the report: its figure, title and description."""

    id: str
    title: str
    sentence: str
    """What the chart shows, for readers who cannot see it and for all others. Not yet escaped for HTML."""
    height: int
    """Pixels."""
    figure: Figure


def rounded(values: Floats, digits: int) -> list[float | None]:
    """The values rounded for JSON; None for NaN and infinity."""
    return [number(value, digits) for value in values.tolist()]


def number(value: float, digits: int) -> float | None:
    """The value rounded for JSON; None for NaN and infinity."""
    return round(value, digits) if math.isfinite(value) else None
