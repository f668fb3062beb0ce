"""The trainers of a replay: read from a JSON file, or made from seven published scalability tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oakum_solver.errors import LogError, ProblemError
from oakum_solver.problem import Bundle, Curve, PlannedTrainer

PAPER_NODES = (1, 2, 4, 8, 16, 32, 64)
PAPER_RATES = {
    "AlexNet": (7115.3, 13071.7, 21066.1, 40484.9, 74002.9, 130762.0, 202135.4),
    "VGG16": (1193.3, 2389.2, 4691.7, 9257.9, 18348.9, 36208.5, 70151.7),
    "ResNet18": (5218.8, 10582.5, 20436.0, 39584.0, 78023.8, 144762.5, 262723.0),
    "DenseNet": (989.9, 1952.5, 3849.8, 7608.1, 14993.2, 28812.2, 57773.9),
    "MnasNet": (3245.7, 6001.9, 11489.3, 23075.6, 43899.7, 83474.2, 160493.6),
    "ShuffleNet": (2831.0, 5259.0, 9988.0, 20379.2, 38895.3, 74125.1, 145081.5),
    "MobileNet": (3039.9, 5893.0, 11386.0, 22024.8, 42488.4, 82268.3, 155213.8),
}
"""Samples/s on `PAPER_NODES` nodes of 6 GPUs (BFTrainer, arXiv:2106.12091, and its authors' public data)."""
PAPER_SAMPLES = 1.3e8
"""Samples of a finite trainer of the paper's workload: about 100 epochs of ImageNet."""
_GROW_STALLS_S, _SHRINK_STALLS_S = (17.0, 18.0, 19.0), (11.0, 12.0, 13.0)
"""Stalls from the published ranges, assigned to the trainers in turn."""


@dataclass(frozen=True)
class WorkItem:
    """One trainer of a workload, with its submission and its length."""

    trainer: PlannedTrainer
    """The trainer, with the stalls of the cost model `paper` and no start-up."""
    submit_s: float = 0.0
    """Seconds since the log's start."""
    samples: float | None = None
    """Samples to train; None for an endless trainer."""


@dataclass(frozen=True)
class Workload:
    """Trainers in order of submission; those submitted at one time keep the given order."""

    items: tuple[WorkItem, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise ProblemError("a workload without trainers: expected at least one")
        name, times = Counter(item.trainer.id for item in self.items).most_common(1)[0]
        if times > 1:
            raise ProblemError(f"trainer {name} is in the workload twice")
        object.__setattr__(self, "items", tuple(sorted(self.items, key=lambda item: item.submit_s)))


def paper_workload(trainers: int = 7, endless: bool = True) -> Workload:
    """A workload of `trainers` trainers, all submitted at the log's start, with the seven published tables in
    turn.

    Raises `ProblemError` for fewer than one trainer.
    """
    names = list(PAPER_RATES)
    return Workload(
        tuple(
            WorkItem(
                _paper_trainer(names[number % len(names)], number),
                samples=None if endless else PAPER_SAMPLES,
            )
            for number in range(trainers)
        )
    )


def _paper_trainer(network: str, number: int) -> PlannedTrainer:
    return PlannedTrainer(
        id=f"{network}-{number // len(PAPER_RATES) + 1}",
        curve=Curve(tuple(zip(PAPER_NODES, PAPER_RATES[network], strict=True))),
        min_nodes=1,
        max_nodes=PAPER_NODES[-1],
        grow_stall_s=_GROW_STALLS_S[number % len(_GROW_STALLS_S)],
        shrink_stall_s=_SHRINK_STALLS_S[number % len(_SHRINK_STALLS_S)],
        startup_s=0.0,
    )


def read_workload(path: Path) -> Workload:
    """Read a JSON file `{"trainers": [{"name", "min_nodes", "max_nodes", "curve", "samples", "submit_s", ...},
    ...]}`.

    Raises `LogError` with file, trainer and cause where the document is not such a workload.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LogError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    entries = document.get("trainers") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise LogError(f'{path}: expected an object {{"trainers": [...]}}')
    items = []
    for number, entry in enumerate(entries, start=1):
        try:
            items.append(_item(entry))
        except (ProblemError, ValueError) as error:
            raise LogError(f"{path}, trainer {number}: {error}") from error
    try:
        return Workload(tuple(items))
    except ProblemError as error:
        raise LogError(f"{path}: {error}") from error


_LEAST, _MOST = 1e-15, 1e15
"""Least and largest magnitude of a number other than 0: others are mistakes, and their sums would overflow."""
_NUMBERS = f"0 or of a size between {_LEAST:g} and {_MOST:g}"
_KEYS = {
    *("name", "min_nodes", "max_nodes", "curve", "samples", "submit_s", "grow_stall_s", "shrink_stall_s"),
    *("weight", "priority", "user", "deadline_s", "sizes", "slots_per_fragment"),
}


def _item(entry: object) -> WorkItem:
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r}: expected an object")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}: expected some of {', '.join(sorted(_KEYS))}")
    name = _text(entry, "name")
    if name is None:
        raise ValueError("no name: expected a text")
    curve = _curve(entry.get("curve"))
    sizes = _sizes(entry.get("sizes"))
    trainer = PlannedTrainer(
        id=name,
        curve=curve,
        min_nodes=_count(entry, "min_nodes", sizes[0] if sizes else 1),
        max_nodes=_count(entry, "max_nodes", sizes[-1] if sizes else curve.points[-1][0]),
        sizes=sizes,
        weight=_number(entry, "weight", 1.0),
        grow_stall_s=_number(entry, "grow_stall_s", 18.0),
        shrink_stall_s=_number(entry, "shrink_stall_s", 12.0),
        startup_s=0.0,
        priority=_count(entry, "priority", 0),
        user=_text(entry, "user"),
        deadline_in_s=_number(entry, "deadline_s", math.inf),
        bundle=_bundle(entry),
    )
    samples = None if entry.get("samples") is None else _number(entry, "samples", 0.0)
    if samples is not None and samples <= 0:
        raise ValueError(f"samples is {samples}: expected a number above 0, or null for an endless trainer")
    submit_s = _number(entry, "submit_s", 0.0)
    if submit_s < 0:
        raise ValueError(f"submit_s is {submit_s}: expected seconds >= 0 since the log's start")
    return WorkItem(trainer, submit_s, samples)


def _curve(points: object) -> Curve:
    if not isinstance(points, list) or not points:
        raise ValueError("no curve: expected [[nodes, samples_per_s], ...]")
    pairs = []
    for point in points:
        if not isinstance(point, list) or len(point) != 2 or not all(_is_number(value) for value in point):
            raise ValueError(f"curve point {point!r}: expected [nodes, samples_per_s], {_NUMBERS}")
        nodes, rate = point
        if nodes != int(nodes):
            raise ValueError(f"curve point {point!r}: expected a whole number of nodes")
        pairs.append((int(nodes), float(rate)))
    return Curve(tuple(pairs))


def _sizes(sizes: object) -> tuple[int, ...]:
    if sizes is None:
        return ()
    if not isinstance(sizes, list) or not sizes or not all(_is_number(n) and n == int(n) for n in sizes):
        raise ValueError(f"sizes is {sizes!r}: expected a list of whole numbers of nodes, such as [1, 2, 4, 8]")
    return tuple(int(nodes) for nodes in sizes)


def _bundle(entry: Mapping[str, Any]) -> Bundle:
    given = entry.get("slots_per_fragment", 1)
    if given == "node":
        return "host"
    if not _is_number(given) or given != int(given) or given < 1:
        raise ValueError(f"slots_per_fragment is {given!r}: expected a whole number from 1 on, or 'node'")
    return int(given)


def _text(entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is not None and (not isinstance(value, str) or not value or not value.isprintable()):
        raise ValueError(f"{key} is {value!r}: expected a printable text")
    return value


def _number(entry: Mapping[str, Any], key: str, default: float) -> float:
    value = entry.get(key)
    if value is None:
        return default
    if not _is_number(value):
        raise ValueError(f"{key} is {value!r}: expected a number, {_NUMBERS}")
    return float(value)


def _count(entry: Mapping[str, Any], key: str, default: int) -> int:
    value = _number(entry, key, default)
    if value != int(value):
        raise ValueError(f"{key} is {value!r}: expected a whole number")
    return int(value)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return value == 0 or _LEAST <= abs(value) <= _MOST
