"""A file that a command writes when its long work is done: checked before, whole or not there after."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from oakum_service.cli.app import CommandError


class OutputFile:
    """A file named by a user.

    Raises `CommandError` at once where it cannot be written: no such folder, no permission, no plain file.
    """

    def __init__(self, path: Path, option: str) -> None:
        self.path = path.absolute()
        self._option = option
        # A link stays a link to the file that is replaced.
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
        """Whether it would replace that file."""
        return self._target == Path(os.path.realpath(path))

    def write(self, parts: Iterable[str]) -> None:
        """Replace the file by these parts, or with none only try whether it could be."""
        written = False
        try:
            with self._part.open("w", encoding="utf-8", newline="") as file:
                for part in parts:
                    written = True
                    file.write(part)
            if written:
                self._part.replace(self._target)
        except OSError as error:
            raise CommandError(f"{self._option} {self.path}: {error.strerror or error}") from error
        finally:
            self._part.unlink(missing_ok=True)
