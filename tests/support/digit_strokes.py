"""Images of digits as the strokes that somebody would draw: thinned to lines, which are then followed."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter, zoom

Point = tuple[float, float]
_FINER = 4
_AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""The eight neighbours of a pixel (row, column), clockwise from the one above."""


def strokes_of(image: np.ndarray) -> list[list[Point]]:
    """Strokes, each a list of points (x, y) in 0 ... 1, y downwards, of an image (8, 8) in 0 ... 1."""
    finer = zoom(np.pad(image, 1), _FINER, order=3, grid_mode=True, mode="grid-constant")
    # The set's images are small: without this, the holes of an 8 are filled.
    sharper = finer + 2 * (finer - gaussian_filter(finer, 0.9 * _FINER))
    thin = _thinned(sharper > 0.5)
    side = thin.shape[0]
    strokes = _followed({(int(r), int(c)) for r, c in np.argwhere(thin)})
    return [[((c + 0.5) / side, (r + 0.5) / side) for r, c in stroke] for stroke in strokes]


def _thinned(pixels: np.ndarray) -> np.ndarray:
    """Lines one pixel wide. T. Y. Zhang, C. Y. Suen: A fast parallel algorithm for thinning digital patterns,
    CACM 27(3), 1984."""
    thin = np.pad(pixels, 1).astype(int)
    while True:
        before = thin.sum()
        for kept in (((0, 2, 4), (2, 4, 6)), ((0, 2, 6), (0, 4, 6))):
            around = [np.roll(thin, (-r, -c), (0, 1)) for r, c in _AROUND]
            number = sum(around)
            turns = sum((a == 0) & (b == 1) for a, b in zip(around, [*around[1:], around[0]], strict=True))
            gone = (thin == 1) & (number >= 2) & (number <= 6) & (turns == 1)
            for group in kept:
                gone &= np.prod([around[i] for i in group], axis=0) == 0
            thin = np.where(gone, 0, thin)
        if thin.sum() == before:
            return thin[1:-1, 1:-1]


def _followed(pixels: set[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The lines' pixels in the order of a pen: from an end to where it goes no further, until all are drawn."""
    left, strokes = set(pixels), []
    while left:
        start = min(left, key=lambda pixel: (len(_next_to(pixel, pixels)), pixel))
        joint = next(iter(_next_to(start, pixels - left)), None)
        stroke = [start] if joint is None else [joint, start]
        left.discard(start)
        while ahead := _next_to(stroke[-1], left):
            stroke.append(ahead[0])
            left.discard(ahead[0])
        ends = _next_to(stroke[-1], pixels - set(stroke[-3:]))
        strokes.append([*stroke, *ends[:1]])
    return strokes


def _next_to(pixel: tuple[int, int], pixels: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pixel's neighbours among `pixels`, those beside it before the diagonal ones."""
    order = sorted(_AROUND, key=lambda step: abs(step[0]) + abs(step[1]))
    return [there for r, c in order if (there := (pixel[0] + r, pixel[1] + c)) in pixels]
