"""What every chart of a report has: a figure for Plotly, and what it shows as a sentence.

Colours are names of the page's style, `var(--used)`, so that one figure serves light, dark and print; the
page's script puts the values in. They are those of Okabe and Ito (jfly.uni-koeln.de/color), which colour-blind
people tell apart.
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
    """One figure of the page."""

    id: str
    title: str
    sentence: str
    """For those who cannot see it, and for all others. Not yet HTML."""
    height: int
    """Pixels."""
    figure: Figure


def rounded(values: Floats, digits: int) -> list[float | None]:
    """As JSON knows numbers, None for those it does not know."""
    return [number(value, digits) for value in values.tolist()]


def number(value: float, digits: int) -> float | None:
    """As JSON knows it."""
    return round(value, digits) if math.isfinite(value) else None
