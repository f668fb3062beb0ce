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
"""Largest time accepted, in seconds: 30,000 years. Larger numbers are no seconds, and too coarse as floats."""


@contextmanager
def open_log(path: Path) -> Iterator[BinaryIO]:
    """Context that opens a log for reading bytes, decompressed where the name ends in `.gz`. Raises `LogError`
    where the file cannot be opened, read or decompressed."""
    try:
        if path.suffix.lower() == ".gz":
            # GzipFile returns each line by a Python call of its own; a buffer around it is twice as fast.
            with gzip.open(path) as packed, io.BufferedReader(packed) as file:
                yield file
        else:
            with path.open("rb") as file:
                yield file
    except EOFError as error:
        raise LogError(f"{path}: it is cut off: copy or download it again") from error
    except (OSError, zlib.error) as error:
        raise LogError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
