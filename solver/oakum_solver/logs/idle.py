"""Reads and writes idle logs: CSV files that tell which node was idle from when to when.

The file is CSV in UTF-8, compressed where its name ends in `.gz`, with the header `node,start_s,end_s` and one row
for each hole. Rows are in any order; times are seconds on any clock. A row whose node is a list as Slurm writes
it, `n[1-4]`, stands for a row for each of its nodes.

With the header `node,start_s,end_s,slot,slots` a row is the hole of one slot: its number on its node, from 0 on,
and how many slots the node has. The log's nodes are then slots, `n1:2`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import LogError
from oakum_solver.logs.files import FURTHEST_S, open_log
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.node_lists import is_folded, unfold
from oakum_solver.logs.parts import Parts

HEADER = ("node", "start_s", "end_s")
SLOT_HEADER = (*HEADER, "slot", "slots")
_MOST_SLOTS = 1024
"""More is no number of GPUs of a node."""
_ROWS_AT_ONCE = 100_000


@dataclass
class _Rows:
    """The rows of an idle log whose length is positive, in the file's order, as compact arrays: there may be
    millions."""

    nodes: dict[str, int] = field(default_factory=dict)
    """Name of a node or slot -> its number, in order of appearance."""
    slot_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name of a slot -> its node and its number there; empty where rows are of whole nodes."""
    slots: dict[str, int] = field(default_factory=dict)
    """Node -> how many slots it has; empty where rows are of whole nodes."""
    node: array[int] = field(default_factory=lambda: array("i"))
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    line: array[int] = field(default_factory=lambda: array("i"))
    num_empty: int = 0
    num_folded: int = 0


def read_idle_log(path: Path) -> HoleLog:
    """Read the holes of an idle log. t = 0 is the start of the first hole, and the log ends with the last hole.

    Nodes are sorted by name. Adjacent holes of a node are merged and rows of length 0 are skipped; the notes count
    both. Raises `LogError` with file, line and cause for a malformed file and for overlapping holes of a node.
    """
    rows = _read_rows(path)
    if not rows.node:
        raise LogError(f"{path}: no hole in it: expected one in each row after the header")
    numbers = {name: number for number, name in enumerate(sorted(rows.nodes))}
    node = np.array([numbers[name] for name in rows.nodes], dtype=np.int32)[np.array(rows.node)]
    start_s, end_s = np.array(rows.start_s), np.array(rows.end_s)
    end_s -= start_s.min()
    start_s -= start_s.min()
    order = np.lexsort((start_s, node))
    node, start_s, end_s = node[order], start_s[order], end_s[order]
    same_node = node[1:] == node[:-1]
    _check_overlaps(path, rows, order, same_node & (start_s[1:] < end_s[:-1]))
    touches = same_node & (start_s[1:] == end_s[:-1])
    node, start_s, end_s = (
        node[np.append(True, ~touches)],
        start_s[np.append(True, ~touches)],
        end_s[np.append(~touches, True)],
    )
    by_start = np.argsort(start_s, kind="stable")
    # Far from 0, a difference of floats can be too coarse for a hole of microseconds.
    by_start = by_start[start_s[by_start] < end_s[by_start]]
    return HoleLog(
        name=path.name,
        nodes=tuple(numbers),
        node=node[by_start],
        start_s=start_s[by_start],
        end_s=end_s[by_start],
        duration_s=float(end_s.max()),
        notes=tuple(_notes(rows, int(touches.sum()))),
        parts=_parts(rows, numbers),
    )


def write_idle_log(path: Path, log: HoleLog) -> None:
    """Write the holes in the format that `read_idle_log` reads, compressed where the name ends in `.gz`.

    The format loses the time before the first and after the last hole, nodes without holes, and the border between
    holes that touch at a cut. Raises `LogError` where the file cannot be written.
    """
    try:
        open_text = gzip.open if path.suffix.lower() == ".gz" else open
        with open_text(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(SLOT_HEADER if log.parts else HEADER)
            for first in range(0, log.num_holes, _ROWS_AT_ONCE):
                rows = slice(first, first + _ROWS_AT_ONCE)
                writer.writerows(_as_rows(log, rows))
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error


def _read_rows(path: Path) -> _Rows:
    rows = _Rows()
    with open_log(path) as file:
        reader = csv.reader(_decoded(file), strict=True)
        try:
            header = _header(next(reader, []))
            for row in reader:
                if row:
                    _add(rows, row, header, reader.line_num)
        except UnicodeDecodeError as error:
            # The reader counts a line only after it has got it.
            raise LogError(f"{path}, line {reader.line_num + 1}: it is no UTF-8 text") from error
        except (csv.Error, ValueError) as error:
            raise LogError(f"{path}, line {max(1, reader.line_num)}: {error}") from error
    return rows


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Each line decoded from UTF-8, without a byte order mark. Lines are decoded one by one, so that the reader's
    line number tells which one is not UTF-8."""
    for number, line in enumerate(lines):
        yield (line if number else line.removeprefix(codecs.BOM_UTF8)).decode()


def _header(fields: list[str]) -> tuple[str, ...]:
    header = tuple(field.strip() for field in fields)
    if header not in (HEADER, SLOT_HEADER):
        raise ValueError(
            f"the header {','.join(fields)[:80]!r}: expected {','.join(HEADER)!r} or {','.join(SLOT_HEADER)!r}"
        )
    return header


def _add(rows: _Rows, row: list[str], header: tuple[str, ...], line: int) -> None:
    if len(row) != len(header):
        raise ValueError(f"{len(row)} fields: expected {len(header)}, {','.join(header)}")
    name = row[0].strip()
    start_s, end_s = float(row[1]), float(row[2])
    if not -FURTHEST_S <= start_s <= end_s <= FURTHEST_S or not name:
        raise ValueError(_what_is_wrong(name, start_s, end_s))
    if start_s == end_s:
        rows.num_empty += 1
        return
    names = unfold(name) if is_folded(name) else (name,)
    rows.num_folded += len(names) > 1
    for host in names:
        node = _slot(rows, host, row[3], row[4]) if header == SLOT_HEADER else host
        rows.node.append(rows.nodes.setdefault(node, len(rows.nodes)))
        rows.start_s.append(start_s)
        rows.end_s.append(end_s)
        rows.line.append(line)


def _slot(rows: _Rows, node: str, slot: str, slots: str) -> str:
    """Name of a node's slot, noted in `rows`."""
    number, most = int(slot), int(slots)
    if not 0 <= number < most <= _MOST_SLOTS:
        raise ValueError(
            f"slot {number} of {most} of {node}: expected a number from 0 on, below that of the slots"
        )
    if rows.slots.setdefault(node, most) != most:
        raise ValueError(f"{node} has {most} slots here and {rows.slots[node]} before: expected one number")
    name = f"{node}:{number}"
    rows.slot_of[name] = node, number
    return name


def _parts(rows: _Rows, numbers: Mapping[str, int]) -> Parts | None:
    if not rows.slots:
        return None
    hosts = {name: number for number, name in enumerate(sorted(rows.slots))}
    return Parts(
        host=np.array([hosts[rows.slot_of[name][0]] for name in numbers], dtype=np.int32),
        names=tuple(hosts),
        slots=np.array([rows.slots[name] for name in hosts], dtype=np.int32),
        slot=np.array([rows.slot_of[name][1] for name in numbers], dtype=np.int32),
    )


def _as_rows(log: HoleLog, rows: slice) -> Iterator[tuple[str | float, ...]]:
    times = zip(log.node[rows].tolist(), log.start_s[rows].tolist(), log.end_s[rows].tolist(), strict=True)
    if (parts := log.parts) is None:
        return ((log.nodes[node], start_s, end_s) for node, start_s, end_s in times)
    host, slot, slots = parts.host.tolist(), parts.slot.tolist(), parts.slots.tolist()
    return (
        (parts.names[host[node]], start_s, end_s, slot[node], slots[host[node]]) for node, start_s, end_s in times
    )


def _what_is_wrong(name: str, start_s: float, end_s: float) -> str:
    if not name:
        return "the node has no name"
    for seconds in (start_s, end_s):
        if not math.isfinite(seconds) or abs(seconds) > FURTHEST_S:
            return f"{seconds}: expected seconds, within {FURTHEST_S:g} of 0"
    return f"the hole of {name} ends at {end_s} s, before it starts at {start_s} s: did the clock go back?"


def _check_overlaps(path: Path, rows: _Rows, order: NDArray[np.intp], overlaps: NDArray[np.bool_]) -> None:
    """Raise `LogError` for the first overlap: `overlaps[i]` says that row `order[i + 1]` starts before row
    `order[i]` ends."""
    if not overlaps.any():
        return
    at = int(np.argmax(overlaps))
    earlier, later = int(order[at]), int(order[at + 1])
    raise LogError(
        f"{path}, line {rows.line[later]}: the hole of {list(rows.nodes)[rows.node[later]]} starts at "
        f"{rows.start_s[later]} s, while that of line {rows.line[earlier]} lasts until {rows.end_s[earlier]} s: "
        "expected one hole of a node at a time"
    )


def _notes(rows: _Rows, num_touching: int) -> Iterator[str]:
    if rows.num_folded:
        yield f"rows of a list of nodes, read as a row for each node: {rows.num_folded}"
    if rows.num_empty:
        yield f"rows without length skipped: {rows.num_empty}"
    if num_touching:
        yield f"holes joined to the one that ends on their node as they begin: {num_touching}"
