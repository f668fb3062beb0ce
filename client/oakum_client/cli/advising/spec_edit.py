"""Writes advised fields into a spec's text, and leaves the user's own text and comments as they are."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from oakum_worker.errors import SpecError, reason_of
from oakum_worker.spec import read_spec

MARK = "# oakum advise: "
"""How the comments begin that stand above advised fields. They stay while the field's advice does."""
NOTE = "# oakum advise, note: "
"""How the comments begin that stand at the end; the next advice takes their place."""
_AFTER = ("max_nodes", "min_nodes", "epochs", "global_batch")


def with_advice(
    text: str, fields: Mapping[str, Any], reasons: Mapping[str, str], notes: tuple[str, ...] = ()
) -> str:
    """The YAML text with these top-level fields set, each below a comment with its reason; `notes` come last.

    Values that are there are replaced in their place. Earlier advice on these fields goes, and so do earlier
    notes; comments on other fields, of which there is nothing new to say, stay. Raises `SpecError` where the text
    is no block mapping, as JSON is.
    """
    text = "".join(_without_old_advice(text.splitlines(keepends=True), fields))
    if text and not text.endswith("\n"):
        text += "\n"
    for name, value in fields.items():
        text = _set(text, name, value, reasons.get(name, ""))
    return text + "".join(f"{NOTE}{note}\n" for note in notes)


def _without_old_advice(lines: list[str], fields: Mapping[str, Any]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if line.startswith(NOTE):
            continue
        if line.startswith(MARK):
            below = next((following for following in lines[number + 1 :] if not following.startswith(MARK)), "")
            if not below.strip() or below.split(":")[0] in fields:
                continue
        yield line


def _set(text: str, name: str, value: Any, reason: str) -> str:
    written = json.dumps(value)
    comment = f"{MARK}{reason}\n" if reason else ""
    places = _places(text)
    lines = text.splitlines(keepends=True)
    if name in places:
        key, node = places[name]
        if node.start_mark.line != node.end_mark.line and not isinstance(
            node, yaml.SequenceNode | yaml.MappingNode
        ):
            raise SpecError(f"{name} goes over several lines: write the advised {written} there yourself")
        end = _end_of(text, node)
        changed = text[: node.start_mark.index] + written + text[end:]
        start = sum(len(line) for line in lines[: key.start_mark.line])
        return changed[:start] + comment + changed[start:]
    before = next((places[name_before] for name_before in _AFTER if name_before in places), None)
    at = len(lines) if before is None else text[: _end_of(text, before[1])].count("\n") + 1
    return "".join([*lines[:at], comment, f"{name}: {written}\n", *lines[at:]])


def _end_of(text: str, node: yaml.Node) -> int:
    """The index behind the node's last character; a block node's own mark lies behind what follows it, too."""
    end: int = node.end_mark.index
    while end > node.start_mark.index and text[end - 1].isspace():
        end -= 1
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end_of(text, last[1] if isinstance(last, tuple) else last)
    return end


def _places(text: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Top-level key -> its node and its value's."""
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise SpecError("the spec is no YAML of one field a line, as JSON is not: change it by hand")
    return {key.value: (key, value) for key, value in root.value if isinstance(key, yaml.ScalarNode)}


def difference(before: str, after: str, path: Path) -> str:
    """A unified diff of the two texts; empty where they are equal."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(path), f"{path} (advised)"
    )
    return "".join(lines)


def refuse_uneditable(path: Path) -> None:
    """Raise `SpecError` where advice could not be written into the file: it, or its folder, is read-only, or its
    text is no block mapping."""
    target = path.resolve()
    try:
        text = target.read_text(encoding="utf-8")
        writable = target.stat().st_mode & 0o222 and os.access(target, os.W_OK)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {reason_of(error)}") from error
    if not writable:
        raise SpecError(f"{path} is read-only: `chmod u+w {path}`, or take the advice without --apply")
    if not os.access(target.parent, os.W_OK):
        raise SpecError(f"{path}: its folder {target.parent} is read-only, so the file cannot be replaced there")
    _places(text)


def replace_spec(path: Path, text: str) -> None:
    """Put the text into the file, whole or not at all, after reading it as a spec.

    Raises `SpecError` where it is no valid spec any more, or the file cannot be written; the file stays then.
    """
    try:
        target = path.resolve()
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".oakum-advise-") as folder:
            written = Path(folder) / target.name
            written.write_text(text, encoding="utf-8")
            read_spec(written)
            written.chmod(target.stat().st_mode)
            os.replace(written, target)  # noqa: PTH105 - the file's name stays, what it names changes
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from error
