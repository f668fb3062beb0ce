"""An output file of a long command: checked before the work begins, and written atomically at its end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from oakum_client.cli.app import CommandError


class OutputFile:
    """A file named by the user.

    Raises `CommandError` at once if it cannot be written: no such folder, no permission, not a plain file.
    """

    def __init__(self, path: Path, option: str) -> None:
        self.path = path.absolute()
        self._option = option
        # Replace the file that a link points to, not the link.
        self._target = Path(os.path.realpath(path))
        self._part = self._target.with_name(f".oakum{option}.{os.getpid()}.part")
        if self._target.exists() and not self._target.is_file():
            raise CommandError(f"{option} {path}: not a plain file")
        if not self._target.parent.is_dir():
            raise CommandError(f"{option} {path}: there is no folder {self._target.parent}")
        if self._target.exists() and not os.access(self._target, os.W_OK):
            raise CommandError(f"{option} {path}: it is write-protected")
        self.write([])

    def same_as(self, path: Path) -> bool:
        """Whether `path` is this file itself, which writing would replace."""
        return self._target == Path(os.path.realpath(path))

    def write(self, parts: Iterable[str]) -> None:
        """Replace the file by the joined `parts`. Without any part, only check that it could be replaced. Raises
        `CommandError` where it cannot be written; the old file then stays."""
        has_parts = False
        try:
            with self._part.open("w", encoding="utf-8", newline="") as file:
                for part in parts:
                    has_parts = True
                    file.write(part)
            if has_parts:
                self._part.replace(self._target)
        except OSError as error:
            raise CommandError(f"{self._option} {self.path}: {error.strerror or error}") from error
        finally:
            self._part.unlink(missing_ok=True)
