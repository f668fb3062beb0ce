"""docs/architecture.md names every package, and the page of each wing every room."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAP = ROOT / "docs" / "architecture.md"
WINGS = {
    "service": ROOT / "service" / "oakum_service",
    "solver": ROOT / "solver" / "oakum_solver",
    "worker": ROOT / "worker" / "oakum_worker",
    "client": ROOT / "client" / "oakum_client",
}
_NAME = re.compile(r"`([\w/]+)`")


def test_the_map_names_every_package() -> None:
    """A package within another one is named with its way, `schedulers/slurm`, or, beside that, by its own name,
    `reading`."""
    named = _names(MAP)
    for package in WINGS.values():
        below = [path.parent.relative_to(package) for path in package.rglob("__init__.py")]
        ways = {way.as_posix(): way.name for way in below if way.parts}
        assert {way for way, name in ways.items() if way not in named and name not in named} == set()


def test_each_wing_names_its_rooms() -> None:
    for wing, package in WINGS.items():
        rooms = {path.stem for path in package.glob("*.py") if path.stem not in ("__init__", "__main__")}
        rooms |= {path.parent.name for path in package.glob("*/__init__.py")}
        assert rooms - _names(ROOT / "docs" / "architecture" / f"{wing}.md") == set()


def _names(page: Path) -> set[str]:
    """What stands between backticks in the page's tables."""
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return {name for row in rows for name in _NAME.findall(row)}
