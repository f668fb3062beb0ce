"""The fenced blocks of README.md, CONTRIBUTING.md, SECURITY.md and all pages in docs.

How a block is tested is in its first line: after the fence comes `sh` for commands that run as they stand, `sh
service` for the one that stays, `sh check: REASON` for commands that are only looked up, `console` for commands
with what they print (`console check: REASON` where these are only looked up), `console fails` for one that ends
with status 1 after printing the block's other lines.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from oakum_client.cli import load_commands
from oakum_client.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
_IN_TEXT = re.compile(r"`((?:\S*/)?oakum [a-z][^`]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, the words after its fence, and its lines."""

    place: str
    info: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The block's commands, one on each line, without their output."""
        lines = self.text.splitlines()
        if self.info.startswith("console"):
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip()]


def name_of(page: Path) -> str:
    """The page's place in the checkout, such as `docs/admin.md`."""
    return page.relative_to(ROOT).as_posix()


def blocks() -> list[Block]:
    """All blocks of all pages."""
    return [
        Block(f"{name_of(page)}:{text[: match.start()].count(chr(10)) + 1}", match[2].strip(), match[3])
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in _BLOCK.finditer(text)
    ]


def commands_in_text() -> Iterator[tuple[str, str]]:
    """Page and command, of every `oakum ...` between single backticks outside of blocks."""
    for page in PAGES:
        for match in _IN_TEXT.finditer(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
            yield name_of(page), match[1]


def fault_of(command: str) -> str | None:
    """The name of the unknown command or option in an `oakum` command line; None if the line is correct or
    another program's."""
    words = shlex.split(command, comments=True)
    while words and (words[0] == "sudo" or _ASSIGNMENT.fullmatch(words[0])):
        words.pop(0)
    if not words or Path(words[0]).name != "oakum":
        return None
    return _fault(_command(), words[1:])


@functools.cache
def _command() -> Any:
    load_commands()
    return typer.main.get_command(app)


def _fault(found: Any, words: list[str]) -> str | None:
    while words and hasattr(found, "commands"):
        name, *words = words
        if name.startswith("-"):
            break
        if name not in found.commands:
            return f"there is no command {name!r}"
        found = found.commands[name]
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    missing = [name for name in given if name not in options | {"--help"}]
    return f"{found.name} has no option {', '.join(missing)}" if missing else None
