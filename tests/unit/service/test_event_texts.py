"""Texts of events: a reader sees the subject and then the message, so that the message does not name it again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import oakum_service

ROOT = Path(oakum_service.__file__).parent
FEWEST = 25
"""At least so many places record events: fewer would mean that they are no longer found."""


def recorded(function: ast.AST) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """(subject, what the message may be) of each event that the function records."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "event_log.record":
            _, _, subject, message, *_ = node.args
            yield subject, assigned.get(ast.unparse(message), [message])


def test_no_event_names_its_subject_twice() -> None:
    twice, places = [], 0
    for path in sorted(ROOT.rglob("*.py")):
        functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
        for function in functions:
            for subject, messages in recorded(function):
                places += 1
                named = {ast.unparse(part) for message in messages for part in ast.walk(message)}
                if not isinstance(subject, ast.Constant) and ast.unparse(subject) in named:
                    twice.append(f"{path.name}: {ast.unparse(subject)} in {ast.unparse(messages[0])}")
    assert not twice
    assert places >= FEWEST
