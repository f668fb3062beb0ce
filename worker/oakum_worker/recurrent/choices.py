"""Chooses how a layer's loops run: by the choice that was measured to be fastest, else by the cost model's."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from oakum_worker.recurrent.building import build_key
from oakum_worker.recurrent.design_space import LoopDesign, Shape, search, tiles
from oakum_worker.recurrent.machine import this_machine


@functools.lru_cache(maxsize=256)
def choose(shape: Shape, vector_bytes: int, threads: int) -> LoopDesign:
    """The choice by which the loops compute a layer of this shape with at most `threads` threads: the one that
    `oakum profile rnn` measured to be fastest, or without a measurement the one that the cost model predicts to
    be fastest. `vector_bytes` is the length of the processor's vectors. Results are cached in this process."""
    measured = remembered(shape, threads)
    return measured or search(shape, this_machine(vector_bytes), threads).choice


def remembered(shape: Shape, threads: int) -> LoopDesign | None:
    """The choice that was measured earlier to be the fastest for this shape and number of threads on this kind
    of processor; None if none was measured."""
    try:
        choice = LoopDesign(**entry(_key(shape, threads)))
    except (KeyError, TypeError):
        return None
    is_sound = choice.threads in range(1, threads + 1) and choice.tile >= 1 and choice.unit_tiles in (1, 2)
    return choice if is_sound and choice.unroll in (1, 2, 4) else None


def remember(shape: Shape, threads: int, choice: LoopDesign) -> None:
    """Write the choice for this shape and number of threads into the user's file (`default_file`), for later
    layers of this and other processes."""
    keep_entry(_key(shape, threads), asdict(choice))
    choose.cache_clear()


def entry(key: str) -> Any:
    """What the user's file keeps under `key`. Raises `KeyError` if there is nothing, or no such file."""
    return _entries(default_file())[key]


def keep_entry(key: str, value: dict[str, Any]) -> None:
    """Write `value` into the user's file under `key`. Of several processes that write at once one may lose its
    entry, but the file is whole at any time. Raises `OSError` if it cannot be written."""
    file = default_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = _entries(file) | {key: value}
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        written = Path(folder) / file.name
        written.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        written.replace(file)


def hashed(*parts: object) -> str:
    """A key for the user's file: it changes with the parts, the loops' source and the processor."""
    return hashlib.sha256(" ".join([*map(str, parts), build_key()]).encode()).hexdigest()[:32]


def default_file() -> Path:
    """Path of the file in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`) that keeps measured choices
    and verdicts."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "oakum" / "rnn.json"


def _key(shape: Shape, threads: int) -> str:
    # Sequences that are longer than the longest tile are all alike.
    alike = replace(shape, steps=min(shape.steps, max(tiles(replace(shape, steps=1 << 20)))))
    named = "-".join(str(value) for value in asdict(alike).values())
    return hashed(named, threads)


def _entries(file: Path) -> dict[str, Any]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
