"""The page's modules as one script, made of them as they stand: sixty requests take longer than their bytes.

Each module becomes a function, called in the order of imports; what it exports is the function's result.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

_IMPORT = re.compile(r'^import \{ ([^}]+) \} from "(\.[^"]+)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.M)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.M)


def one_script(folder: Path, first: str) -> str:
    """The module `first`, a path in the folder, with all that it imports.

    Raises `ValueError` for a cycle, and for another form than `import { a } from "./b.js";` and `export function`,
    `class` or `const`.
    """
    functions: dict[str, str] = {}
    _add(folder, first, functions, ())
    return "const modules = {};\n" + "".join(functions.values())


def _add(folder: Path, path: str, made: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module to those made, behind the ones that it imports."""
    if path in importers:
        raise ValueError(f"{path} imports itself by way of {', '.join(importers[importers.index(path) + 1 :])}")
    text = (folder / path).read_text(encoding="utf-8")
    for _, name in _IMPORT.findall(text):
        imported = _imported_path(path, name)
        if imported not in made:
            _add(folder, imported, made, (*importers, path))
    made[path] = _function(path, text)


def _function(path: str, text: str) -> str:
    def from_modules(found: re.Match[str]) -> str:
        names = found[1].replace(" as ", ": ")
        return f'const {{ {names} }} = modules["{_imported_path(path, found[2])}"];'

    exported = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub(from_modules, text))
    if other := _OTHER.search(body):
        raise ValueError(f"{path}: cannot be put into one script: {other[0]}")
    return f'modules["{path}"] = (() => {{\n{body}return {{ {", ".join(exported)} }};\n}})();\n'


def _imported_path(path: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
