"""Shows with a failed test what its service, agents, ranks and other processes have logged last.

Their logs lie below the test's `tmp_path`. They are gone from the CI machine when somebody reads of the failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from last_lines import last_lines

LOGS = ("*.log", "*.out", "*.err")
MOST_LOGS = 6
LINES_OF_EACH = 15
LINES_OF_CAPTURED = 40
_READ_BYTES = 64 * 1024


def last_lines_of_logs(folder: Path) -> Iterator[tuple[str, str]]:
    """(Title, text) of each of the logs below the folder that were written last, the newest last; empty logs are
    left out."""
    found = [path for pattern in LOGS for path in folder.rglob(pattern) if path.is_file() and path.stat().st_size]
    for path in sorted(found, key=lambda each: each.stat().st_mtime)[-MOST_LOGS:]:
        with path.open("rb") as log:
            log.seek(max(path.stat().st_size - _READ_BYTES, 0))
            text = log.read().decode(errors="replace")
        yield f"End of {path.relative_to(folder)}", last_lines(text, LINES_OF_EACH)
