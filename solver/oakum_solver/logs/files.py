"""Log files, compressed or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from oakum_solver.errors import LogError

FURTHEST_S = 1e12
"""30,000 years: a time beyond is none in seconds, and too coarse as a floating-point number."""


@contextmanager
def open_log(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where its name ends in `.gz`; whatever fails on the way is a `LogError`."""
    try:
        if path.suffix.lower() == ".gz":
            # GzipFile hands out lines one Python call at a time; a buffer around it is twice as fast.
            with gzip.open(path) as packed, io.BufferedReader(packed) as file:
                yield file
        else:
            with path.open("rb") as file:
                yield file
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{path}: {error}") from error
