"""docs/testing.md and docs/exactness.md tell which test shows each promise: it exists, and `make test` runs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
_PAGE = TESTS.parent / "docs" / "testing.md"
_EXACTNESS = TESTS.parent / "docs" / "exactness.md"
_TEST = re.compile(r"`(\w[\w/]*/test_\w+\.py(?:::\w+)+)`( \(soak\))?")


def test_every_promise_has_its_tests() -> None:
    """Each test that the table names exists, and is marked `soak` as a whole only where its row says so."""
    rows = _rows(_PAGE.read_text(encoding="utf-8").partition("## What shows each promise\n")[2])
    assert len(rows) > 90
    assert [fault for row in rows for fault in _faults(row)] == []


def test_each_line_of_what_is_exact_has_its_tests() -> None:
    """Of docs/exactness.md: "the same" stands for the tests of the line above it."""
    rows = [row for row in _rows(_EXACTNESS.read_text(encoding="utf-8")) if "| shown by |" not in row]
    assert len(rows) > 20
    assert [fault for row in rows if not row.endswith("| the same |") for fault in _faults(row)] == []


def _rows(section: str) -> list[str]:
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [line for line in lines if line != "| promise | test |" and not line.startswith("|---")]


def _faults(row: str) -> Iterator[str]:
    promise, _, tests = row.strip("| ").rpartition(" | ")
    named = _TEST.findall(tests)
    if not promise or not named or _TEST.sub("", tests).strip(" ,"):
        yield f"{row}: no promise, or something else than tests"
    for test, soak in named:
        is_soak = _is_soak(*test.split("::"))
        if is_soak is None:
            yield f"{test}: there is no such test"
        elif is_soak != bool(soak):
            yield f"{test}: {'only the soak runs it' if is_soak else 'it is not of the soak alone'}"


def _is_soak(path: str, *names: str) -> bool | None:
    """Whether the test is marked so, by itself, its class or its module; None where there is none."""
    if not (TESTS / path).exists():
        return None
    body = ast.parse((TESTS / path).read_text(encoding="utf-8")).body
    marks = [_value(node) for node in body if "pytestmark" in _names(node)]
    for name in names:
        found = [node for node in body if name in _names(node)]
        if not found or not name.lower().startswith("test"):
            return None
        marks += getattr(found[-1], "decorator_list", [])
        body = getattr(found[-1], "body", [])
    return any(ast.unparse(mark) == "pytest.mark.soak" for mark in _each(marks))


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement gives: a function's or class's own, or those that it assigns to, as
    `TestMembership = Membership.TestCase` does."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    return [each.id for each in node.targets if isinstance(each, ast.Name)] if isinstance(node, ast.Assign) else []


def _value(node: ast.stmt) -> ast.expr:
    assert isinstance(node, ast.Assign)
    return node.value


def _each(marks: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for mark in marks:
        yield from mark.elts if isinstance(mark, (ast.List, ast.Tuple)) else [mark]
