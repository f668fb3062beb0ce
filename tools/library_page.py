"""Prints docs/libraries.md: what becomes of each name of the libraries that have an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oakum.surface import accelerate, fabric, hugging_face, lightning_trainer
from oakum.surface.tables import Kind, Surface
from oakum.surface.verdicts import Means, Refused, Verdict

_LIBRARIES: dict[str, Sequence[Surface]] = {
    "Hugging Face's Trainer": hugging_face.SURFACES,
    "Accelerate": accelerate.SURFACES,
    "Lightning Fabric": fabric.SURFACES,
    "Lightning Trainer": lightning_trainer.SURFACES,
}
_KINDS: dict[Kind, str] = {
    "fields": "fields of `{}`",
    "arguments": "arguments of `{}`",
    "members": "names of `{}`",
    "attributes": "attributes of an object of `{}`",
    "overrides": "a subclass of `{}` that defines anew",
}
_INTRODUCTION = """\
# What becomes of each name of a library

[Adapters](trainer/README.md#the-shortest-way) let a script keep its library. This page has the libraries' public
names, each with what becomes of it:

- **as in the library**: at any number of nodes.
- **refused**: raises `SessionError`, which says what to do. Where values are named, the others work.
- anything else: it works, and means something else. After a semicolon stands what to do in its place.

The tables are `client/oakum/surface/`, and tests hold them against the installed libraries. Of an argument of a
newer version, which they do not know, Oakum warns.
"""


def library_page() -> str:
    """The page."""
    return "\n".join([_INTRODUCTION, *(line for name in _LIBRARIES for line in _section(name))])


def _section(name: str) -> Iterator[str]:
    yield f"## {name}\n"
    for surface in _LIBRARIES[name]:
        yield f"| {_KINDS[surface.kind].format(surface.name)} | under Oakum |\n|---|---|"
        for verdict in dict.fromkeys(surface.table.values()):
            names = sorted(name for name, one in surface.table.items() if one == verdict)
            yield f"| {', '.join(f'`{one}`' for one in names)} | {_told(verdict)} |"
        yield ""


def _told(verdict: Verdict) -> str:
    if isinstance(verdict, Refused):
        return f"refused{f' ({verdict.given})' if verdict.given else ''}: {verdict.advice}"
    if isinstance(verdict, Means):
        return f"{verdict.what}; {verdict.advice}" if verdict.advice else verdict.what
    return "as in the library"


if __name__ == "__main__":
    print(library_page(), end="")
