"""Whatever bytes an idle log is made of: holes, or a LogError. What is written is read again."""

import contextlib
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import read_idle_log, write_idle_log
from oakum_solver.logs.reading import read_log

IDLE = b"node,start_s,end_s\nn1,0,10\nn2,5.25,1e3\nn1,12,600\n\xc3\xb6,-7,-2\n"
SWF = b"""; MaxNodes: 3
; MaxProcs: 6
1 0 964 972 2 -1 -1 2 2100 -1 1 1 1 -1 -1 -1 -1 -1
2 32 29 9382 3 12.5 -1 3 14400 -1 0 2 2 -1 -1 -1 -1 -1
"""
NOISE = st.one_of(
    st.binary(max_size=6),
    st.sampled_from((b"nan", b"1e999", b"-1e11", b"1e12", b",", b'"', b"\n", b"\r", b"\0", b"n1", b"9" * 5000)),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=5)
LENGTHS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=5)


def consistent(log: HoleLog) -> bool:
    """What everybody may rely on."""
    order = np.lexsort((log.start_s, log.node))
    node, start_s, end_s = log.node[order], log.start_s[order], log.end_s[order]
    apart = (node[1:] != node[:-1]) | (start_s[1:] >= end_s[:-1])
    inside = (log.start_s >= 0) & (log.start_s < log.end_s) & (log.end_s <= log.duration_s)
    return bool(apart.all() and inside.all() and (np.diff(log.start_s) >= 0).all() and log.duration_s > 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@settings(deadline=None)
@given(place=st.integers(0, len(IDLE)), removed=st.integers(0, 20), noise=NOISE)
def test_a_mutated_idle_log_raises_nothing_else(folder: Path, place: int, removed: int, noise: bytes) -> None:
    path = folder / "idle.csv"
    path.write_bytes(IDLE[:place] + noise + IDLE[place + removed :])
    with contextlib.suppress(LogError):
        assert consistent(read_idle_log(path))


@settings(deadline=None)
@given(place=st.integers(0, 90), removed=st.integers(0, 20), noise=NOISE)
def test_a_mutated_archive_raises_nothing_else(folder: Path, place: int, removed: int, noise: bytes) -> None:
    packed = gzip.compress(IDLE, mtime=0)
    path = folder / "idle.csv.gz"
    path.write_bytes(packed[:place] + noise + packed[place + removed :])
    with contextlib.suppress(LogError):
        assert consistent(read_idle_log(path))


@settings(deadline=None)
@given(place=st.integers(0, len(SWF)), removed=st.integers(0, 20), noise=NOISE, easy=st.booleans())
def test_the_holes_of_a_mutated_workload_log_raise_nothing_else(
    folder: Path, place: int, removed: int, noise: bytes, easy: bool
) -> None:
    path = folder / "log.swf"
    path.write_bytes(SWF[:place] + noise + SWF[place + removed :])
    with contextlib.suppress(LogError):
        assert consistent(read_log(path, easy=easy))


@settings(deadline=None)
@given(nodes=st.dictionaries(NAMES, LENGTHS, min_size=1, max_size=4), suffix=st.sampled_from((".csv", ".csv.gz")))
def test_a_written_log_is_read_again(folder: Path, nodes: dict[str, list[float]], suffix: str) -> None:
    """Each node's list is a hole's length, a gap, a hole's length, ...; all begin at 0."""
    edges = [np.cumsum([0.0, *lengths, *[1.0] * (1 - len(lengths) % 2)]) for _, lengths in sorted(nodes.items())]
    node = np.concatenate([np.full(len(edge) // 2, number) for number, edge in enumerate(edges)])
    start_s, end_s = np.concatenate([edge[::2] for edge in edges]), np.concatenate([edge[1::2] for edge in edges])
    order = np.argsort(start_s, kind="stable")
    log = HoleLog(
        name=f"idle{suffix}",
        nodes=tuple(sorted(nodes)),
        node=node[order].astype(np.int32),
        start_s=start_s[order],
        end_s=end_s[order],
        duration_s=float(end_s.max()),
    )
    write_idle_log(folder / log.name, log)
    again = read_idle_log(folder / log.name)
    assert (again.name, again.nodes, again.duration_s, again.notes) == (log.name, log.nodes, log.duration_s, ())
    assert again.node.tolist() == log.node.tolist()
    assert again.start_s.tolist() == log.start_s.tolist()
    assert again.end_s.tolist() == log.end_s.tolist()
