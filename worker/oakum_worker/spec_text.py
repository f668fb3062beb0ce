"""A spec's text, YAML or JSON. A service reads it for whoever sends it, so reading takes little time whatever it
says: values and depth are counted before anything is made of them, by libyaml where PyYAML has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from oakum_worker.errors import SpecError

_MOST_VALUES, _DEEPEST = 10_000, 100
_LONGEST_NUMBER = 500
"""Characters of a value that is no text: a number in several parts, such as 1:30:00, takes longer the longer it
is."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT = "tag:yaml.org,2002:str"
_DEEPEST_PLACE, _LONGEST_NAME = 4, 63
"""Parts and characters of the places whose lines are told: no field of a spec has more."""


def parse_document(text: str) -> dict[Any, Any]:
    """The fields in a spec's text, which need not be those of a spec. Raises `SpecError` if the text is something
    else, has aliases, has a field twice, or is larger than any spec."""
    try:
        _refuse_what_grows(text)
        document = _document(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        if isinstance(error, SpecError):
            raise
        if (line := _line_with_tab(error, text)) is not None:
            raise SpecError(
                f"line {line} is indented with a tab, which YAML does not take: indent with spaces"
            ) from error
        # Other errors than YAMLError come from values that their form or tag does not fit, such as 2026-13-99.
        raise SpecError(f"is neither YAML nor JSON: {error}") from error
    if not isinstance(document, dict):
        raise SpecError("expected a mapping of fields such as 'name:' and 'entrypoint:'")
    return document


def lines_of(text: str) -> dict[str, int]:
    """The line, from 1, on which each field stands in a text that `parse_document` has read, by the field's place,
    such as `checkpoint.every_s`."""
    loader = _LOADER(text)
    try:
        return dict(_places(loader.get_single_node()))
    finally:
        loader.dispose()


def _places(node: yaml.Node, *parts: str) -> Iterator[tuple[str, int]]:
    if len(parts) == _DEEPEST_PLACE:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and len(key.value) <= _LONGEST_NAME:
                yield ".".join([*parts, key.value]), _line(key)
                yield from _places(value, *parts, key.value)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _places(value, *parts, str(number))


def _refuse_what_grows(text: str) -> None:
    """Raise `SpecError` for aliases, a few lines of which can expand beyond any memory, and for more values, or
    values deeper within each other, than a spec has."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(f"line {_line(event)}: *{event.anchor} is an alias: write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise SpecError("is nested too deep: pass a file's name instead")
        if number > _MOST_VALUES:
            raise SpecError(f"has more than {_MOST_VALUES:,} values: pass a file's name instead")


def _document(text: str) -> Any:
    loader = _LOADER(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        for node in _nodes(root):
            _refuse_fields_given_twice(node)
            if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > _LONGEST_NUMBER:
                raise SpecError(
                    f"line {_line(node)}: a value of {len(node.value):,} characters that is no text: write text "
                    "into quotes"
                )
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    nodes_to_visit = [root]
    while nodes_to_visit:
        node = nodes_to_visit.pop()
        yield node
        if isinstance(node, yaml.MappingNode):
            nodes_to_visit += [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            nodes_to_visit += node.value


def _refuse_fields_given_twice(node: yaml.Node) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
        if key.value in lines:
            first = lines[key.value]
            raise SpecError(
                f"line {_line(key)}: {key.value!r} is given again, after line {first}: keep one of them"
            )
        lines[key.value] = _line(key)


def _line(of: Any) -> int:
    """Number, from 1, of the line at which an event or a node begins."""
    line: int = of.start_mark.line + 1
    return line


def _line_with_tab(error: Exception, text: str) -> int | None:
    """Number, from 1, of the line at which the YAML `error` occurred, if that line is indented with a tab; else
    None."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return None
    line = lines[mark.line]
    return mark.line + 1 if "\t" in line[: len(line) - len(line.lstrip())] else None
