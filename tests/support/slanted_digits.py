"""Digits as somebody draws them in a hurry: slanted, uneven, each three times. Nothing was trained on them."""

from __future__ import annotations

import itertools
import math

import numpy as np

from digit_strokes import Point

Stroke = list[Point]
SLANTS = (-0.25, 0.0, 0.25)
"""By how much of its height a drawing leans to the left; about 14 degrees."""
_UNEVEN = 0.02
"""Standard deviation of a point's place, as a share of the pad; points near each other move alike."""


def _arc(x: float, y: float, rx: float, ry: float, begin: float, end: float) -> Stroke:
    """Part of an ellipse around (x, y); angles in degrees, 0 to the right, 90 downwards."""
    angles = np.radians(np.linspace(begin, end, 24))
    return [(x + rx * math.cos(angle), y + ry * math.sin(angle)) for angle in angles]


def _line(*corners: Point) -> Stroke:
    points = [corners[0]]
    for (ax, ay), (bx, by) in itertools.pairwise(corners):
        points += [(ax + (bx - ax) * t, ay + (by - ay) * t) for t in np.linspace(0, 1, 9)[1:]]
    return points


_SHAPES: dict[int, list[Stroke]] = {
    0: [_arc(0.5, 0.5, 0.27, 0.4, -90, 270)],
    1: [_line((0.36, 0.26), (0.53, 0.1), (0.53, 0.9))],
    2: [_arc(0.5, 0.32, 0.24, 0.22, 190, 390) + _line((0.7, 0.44), (0.26, 0.9), (0.78, 0.9))],
    3: [_arc(0.47, 0.3, 0.23, 0.2, 200, 450) + _arc(0.47, 0.7, 0.26, 0.2, 270, 520)],
    4: [_line((0.55, 0.1), (0.24, 0.6), (0.78, 0.6)), _line((0.62, 0.36), (0.62, 0.9))],
    5: [_line((0.72, 0.1), (0.33, 0.1), (0.31, 0.45)) + _arc(0.48, 0.65, 0.25, 0.25, 225, 510)],
    6: [_arc(0.68, 0.6, 0.4, 0.5, 265, 180) + _arc(0.5, 0.68, 0.22, 0.22, 180, 540)],
    7: [_line((0.26, 0.12), (0.74, 0.12), (0.42, 0.9))],
    8: [_arc(0.5, 0.3, 0.19, 0.2, 90, 450) + _arc(0.5, 0.7, 0.24, 0.2, -90, 270)],
    9: [_arc(0.5, 0.32, 0.22, 0.22, 0, -360) + _line((0.72, 0.32), (0.68, 0.9))],
}


def slanted_digits() -> list[tuple[int, list[Stroke]]]:
    """Thirty drawings, each a digit and its strokes of points (x, y) in 0 ... 1, y downwards."""
    chance = np.random.default_rng(5)
    return [(digit, _drawn(strokes, slant, chance)) for slant in SLANTS for digit, strokes in _SHAPES.items()]


def _drawn(strokes: list[Stroke], slant: float, chance: np.random.Generator) -> list[Stroke]:
    height = chance.uniform(0.8, 1.2)  # narrow and wide hands
    slanted = [[(x + slant * (0.5 - y), (y - 0.5) * height + 0.5) for x, y in one] for one in strokes]
    return [_uneven(one, chance) for one in slanted]


def _uneven(stroke: Stroke, chance: np.random.Generator) -> Stroke:
    """The stroke with a hand's slow wobble."""
    points = np.array(stroke)
    wobble = chance.normal(0, 1, (len(points) + 4, 2))
    smooth = np.stack([np.convolve(column, np.ones(5) / math.sqrt(5), "valid") for column in wobble.T], 1)
    return [(float(x), float(y)) for x, y in points + _UNEVEN * smooth]
