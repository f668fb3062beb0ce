"""Whatever a workload file is made of: a workload that can be replayed, or a LogError that names the file."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.objectives import NamedObjective
from oakum_solver.replay.engine import replay
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import Workload, read_workload

DOCUMENT: dict[str, Any] = {
    "trainers": [
        {"name": "resnet", "min_nodes": 1, "max_nodes": 64, "curve": [[1, 5219], [8, 39584], [64, 262723]],
         "samples": 1.3e8, "submit_s": 0, "grow_stall_s": 18, "shrink_stall_s": 12, "weight": 1},
        {"name": "vgg", "curve": [[2, 10]], "samples": None, "priority": 1, "user": "ada", "deadline_s": 900},
    ]
}  # fmt: skip
TEXT = json.dumps(DOCUMENT).encode()
NOISE = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        (b"NaN", b"-Infinity", b"1e999", b"1e300", b"1e-320", b"9" * 400, b"null", b"{}", b"[", b'"', b"\\ud800",
         b"\0", b"-", b"true", b"0")
    ),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(10**300, 10**320),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(("resnet", 0, 1, 2, 1.0, [[1, 1e15], [2, 1e15]], [[1, 1e-15]], [[10**15, 1e-15]], 1e15)),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
LOG = HoleLog(
    name="log.csv",
    nodes=("a", "b", "c"),
    node=np.arange(3, dtype=np.int32),
    start_s=np.array([0.0, 0.0, 40.0]),
    end_s=np.array([90.0, 60.0, 100.0]),
    duration_s=100.0,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workloads") / "trainers.json"


def read(path: Path) -> Workload | None:
    try:
        return read_workload(path)
    except LogError as error:
        refusal = str(error)
    assert refusal.startswith(str(path))
    assert refusal.encode()
    return None


@settings(deadline=None, max_examples=scaled(300))
@given(place=st.integers(0, len(TEXT)), removed=st.integers(0, 20), noise=NOISE)
def test_mutated_bytes_raise_nothing_else(path: Path, place: int, removed: int, noise: bytes) -> None:
    path.write_bytes(TEXT[:place] + noise + TEXT[place + removed :])
    read(path)


@settings(deadline=None, max_examples=scaled(150))
@given(
    number=st.integers(0, 1),
    key=st.sampled_from(sorted({key for entry in DOCUMENT["trainers"] for key in entry})),
    value=VALUES,
    objective=st.sampled_from(NamedObjective),
)
def test_a_trainer_with_any_value_is_refused_or_can_be_replayed(
    path: Path, number: int, key: str, value: Any, objective: NamedObjective
) -> None:
    entries = [dict(entry) for entry in DOCUMENT["trainers"]]
    entries[number][key] = value
    path.write_text(json.dumps({"trainers": entries}))
    workload = read(path)
    if workload is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = replay(LOG, workload, ReplaySettings(objective=objective, policy="greedy"))
    assert np.isfinite([result.samples, result.achieved, result.achievable, result.efficiency]).all()
