"""Shows with a failed test what its service, agents, ranks and other processes have logged last.

Their logs lie below the test's `tmp_path`. They are gone from the CI machine when somebody reads of the failure.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from last_lines import last_lines

LOGS = (".log", ".out", ".err")
MOST_LOGS = 6
LINES_OF_EACH = 15
LINES_OF_CAPTURED = 40
_READ_BYTES = 64 * 1024


def last_lines_of_logs(folder: Path) -> Iterator[tuple[str, str]]:
    """(Title, text) of each of the logs below the folder that were written last, the newest last; empty logs are
    left out.

    What the test has started may still run, and remove its folders meanwhile: what is gone is left out, too.
    """
    for path in _by_time(folder)[-MOST_LOGS:]:
        with contextlib.suppress(OSError):
            yield f"End of {path.relative_to(folder)}", last_lines(_end_of(path), LINES_OF_EACH)


def _by_time(folder: Path) -> list[Path]:
    found = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names if name.endswith(LOGS)):
            with contextlib.suppress(OSError):
                seen = path.stat()
                if stat.S_ISREG(seen.st_mode) and seen.st_size:
                    found.append((seen.st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _end_of(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(os.fstat(log.fileno()).st_size - _READ_BYTES, 0))
        return log.read().decode(errors="replace")
