"""Modules that are named by a path or a string, which neither type checker nor import linter follows."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import rank_processes
from cells import each
from oakum_service.schedulers.fragment_processes import AGENT_MODULES
from oakum_worker.fragment.fork_server import _PRELOADED
from oakum_worker.fragment.forking import MAINS
from oakum_worker.rank.step_clock import _WAITING

ROOT = Path(__file__).resolve().parents[2]
_DOTTED = re.compile(r"\b(oakum_(?:client|worker|service|solver)(?:\.[a-z]\w*)+)")
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")
_FILE_OR_NAME = re.compile(r"`([\w/]*\w(?:\.(?:py|js|html|toml|json|yml|md))?)`")
_TO_BE_CHOSEN = re.compile(r"NAME|NOUN|NNNN")
"""In names that whoever follows a recipe chooses."""
WORKER = ROOT / "worker" / "oakum_worker"
_OTHER_WAITS = {
    ("checkpoint/neighbour_copies.py", "ring.group.recv([torch.empty(1)], ring.ward, _POKE_TAG).wait"),  # for 1 ms
    ("keeping/replicated.py", "self._checkpoints.wait"),
    ("keeping/split.py", "self._durable.wait"),
    ("checkpoint/neighbour_copies.py", "self._travelling.wait"),
    ("parallel/offload.py", "of_shelf.wait"),
    ("parallel/offload.py", "streams.compute.wait"),
    ("parallel/offload.py", "streams.inward.wait"),
    ("parallel/offload.py", "streams.outward.wait"),
    ("parallel/offload.py", "sums.wait"),
}
"""(module, what is called): for disks, CUDA streams, threads and own functions that wait in others; the agent of a
fragment is no rank."""
_SOURCES = ("client/oakum_client", "service/oakum_service", "solver/oakum_solver", "worker/oakum_worker")


@each("name", sorted({*_PRELOADED, *MAINS, *AGENT_MODULES, *rank_processes._PRELOADED}))
def test_a_module_that_is_started_or_preloaded_by_name_exists(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_the_files_in_which_ranks_wait_for_each_other_exist() -> None:
    """A rank that stands in one of them is not taken for hung."""
    assert [path for path in _WAITING if not Path(path).exists()] == []


def test_ranks_wait_for_each_other_in_no_other_module() -> None:
    """A rank that waits elsewhere for a hung rank would be taken for hung itself.

    Whatever is named `wait` counts."""
    waits = {
        (str(path.relative_to(WORKER)), ast.unparse(node.func))
        for path in WORKER.rglob("*.py")
        if not str(path).startswith(_WAITING) and path.parent.name != "fragment"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "wait"
    }
    assert waits == _OTHER_WAITS


def test_every_module_that_the_code_speaks_of_exists() -> None:
    """In docstrings, comments and messages."""
    told = {
        (str(path.relative_to(ROOT)), name)
        for wing in _SOURCES
        for path in (ROOT / wing).rglob("*.py")
        for name in _DOTTED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(told) > 500
    assert {(path, name) for path, name in told if not _is_there(name)} == set()


def test_every_module_that_the_pages_speak_of_exists() -> None:
    told = {
        (page.name, path)
        for page in (ROOT / "docs").glob("*.md")
        for path in _PATH.findall(page.read_text(encoding="utf-8"))
    }
    assert len(told) > 20
    assert {(page, path) for page, path in told if not _is_a_file(path)} == set()


def test_every_name_that_the_recipes_speak_of_exists() -> None:
    """In docs/extending.md: files by their names; classes, functions, fields and options anywhere in sources."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    told = set(_FILE_OR_NAME.findall(" ".join(page.split())))
    assert len(told) > 250
    folders = ("client", "service", "solver", "worker", "tests", "tools", "deploy", "docs", "migrations")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    there = {path.name for path in files} | {path.name for path in ROOT.iterdir()} | {"state.json"}
    words = {
        word
        for path in files
        if path.suffix in (".py", ".js", ".json") and "vendor" not in path.parts
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }
    told = {name.rpartition("/")[2] for name in told if not _TO_BE_CHOSEN.search(name)}
    assert told - there - words == set()


def _is_there(name: str) -> bool:
    """Whether the dotted name is a module, a name in a module, or a method of a class in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        stem = next(w for w in _SOURCES if w.endswith(parts[0])) + "".join(f"/{part}" for part in parts[1:end])
        for path in (ROOT / f"{stem}.py", ROOT / stem / "__init__.py"):
            if path.exists():
                return (
                    end == len(parts)
                    or re.search(rf"\b{parts[end]}\b", path.read_text(encoding="utf-8")) is not None
                )
    return False


def _is_a_file(path: str) -> bool:
    return any(
        (ROOT / folder / path).exists() for folder in ("", "client", "service", "solver", "worker", *_SOURCES)
    )
