"""A console for pipes and files, wide enough that no cell is cut and no table row wrapped."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDEST = 1_000_000


class WholeLines(Console):
    """A console for pipes and files: a table's rows stay on one line each, and other text is wrapped only if
    `COLUMNS` is set."""

    def __init__(self, **options: Any) -> None:
        super().__init__(width=_WIDEST, **options)
        columns = os.environ.get("COLUMNS", "")
        self._columns = int(columns) if columns.isdigit() and int(columns) else _WIDEST

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, without trailing blanks."""
        width = _WIDEST if any(isinstance(item, Table) for item in objects) else self._columns
        with self.capture() as rendered:
            super().print(*objects, **{"width": width, **options})
        self.file.write("".join(f"{line.rstrip()}\n" for line in rendered.get().splitlines()))
        self.file.flush()
