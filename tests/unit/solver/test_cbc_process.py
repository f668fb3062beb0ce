"""CBC may crash, hang or talk nonsense: it costs an error, and leaves neither process nor file."""

import os
import stat
import tempfile
import time
from pathlib import Path

import pulp
import pytest

from oakum_solver import cbc
from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError
from processes import any_runs


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that starts empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def knapsack() -> pulp.LpProblem:
    """A model with three things of which two fit."""
    model = pulp.LpProblem("knapsack", pulp.LpMaximize)
    x, y, z = (model.add_variable(name, cat=pulp.LpBinary) for name in "xyz")
    model += 5 * x + 4 * y + 3 * z
    model += 3 * x + 2 * y + 2 * z <= 5
    return model


def install_fake(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script in CBC's place."""
    path = tmp_path / "cbc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(cbc, "find_cbc", lambda: str(path))


def test_cbc_solves_a_model_and_leaves_no_file(temporary_folder: Path) -> None:
    answer = run_cbc(knapsack(), time_limit_s=5.0)
    assert answer.values == {"x": 1.0, "y": 1.0, "z": 0.0}
    assert answer.optimal
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "kill -SEGV $$",
        "exit 0",
        'for last; do :; done; echo garbage > "$last"',
        'for last; do :; done; : > "$last"',
        'for last; do :; done; echo "Infeasible - objective value 0" > "$last"',
        'for last; do :; done; printf "Optimal - objective value 1\\n 0 X0000000 oops 0\\n" > "$last"',
    ],
    ids=["fails", "crashes", "no-file", "garbage", "empty", "infeasible", "no-number"],
)
def test_a_cbc_without_a_usable_answer_is_a_milp_error(
    script: str, tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake(script, tmp_path, monkeypatch)
    with pytest.raises(MilpError):
        run_cbc(knapsack(), time_limit_s=5.0)
    assert list(temporary_folder.iterdir()) == []


def test_a_cbc_that_hangs_is_killed_with_its_children(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    install_fake(f'sleep 60 & echo "$$ $!" > {pids}; wait', tmp_path, monkeypatch)
    started_s = time.monotonic()
    with pytest.raises(MilpError, match="killed"):
        run_cbc(knapsack(), time_limit_s=2.0)
    assert time.monotonic() - started_s < 30.0
    assert not any_runs(pids)
    assert list(temporary_folder.iterdir()) == []


def test_a_cbc_that_talks_on_without_end_is_killed(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    install_fake(f"echo $$ > {pids}; while :; do echo Cbc0010I After 1000 nodes; done", tmp_path, monkeypatch)
    with pytest.raises(MilpError, match="killed"):
        run_cbc(knapsack(), time_limit_s=0.5)
    assert not any_runs(pids)
    assert list(temporary_folder.iterdir()) == []


def test_a_solver_that_leaves_a_child_behind_with_its_output_open_is_killed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    install_fake(f"sleep 60 & echo $! > {pids}", tmp_path, monkeypatch)
    with pytest.raises(MilpError, match="killed"):
        run_cbc(knapsack(), time_limit_s=2.0)
    assert not any_runs(pids)


def test_an_interrupt_ends_cbc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches us in the waiting."""
    pids = tmp_path / "pids"
    install_fake(f"echo $$ > {pids}; sleep 1; kill -INT {os.getpid()}; sleep 60", tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run_cbc(knapsack(), time_limit_s=60.0)
    assert not any_runs(pids)


def test_cbc_is_told_its_gap_and_a_limit_before_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = tmp_path / "arguments"
    install_fake(f'echo "$@" > {arguments}; exit 1', tmp_path, monkeypatch)
    with pytest.raises(MilpError):
        run_cbc(knapsack(), time_limit_s=5.0, gap=0.25)
    given = arguments.read_text().split()
    assert given[given.index("-allow") + 1] == "0.25"
    assert 4.0 < float(given[given.index("-sec") + 1]) < 5.0


def test_a_missing_cbc_is_a_milp_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cbc, "find_cbc", lambda: str(tmp_path / "absent"))
    with pytest.raises(MilpError, match="absent"):
        run_cbc(knapsack(), time_limit_s=5.0)


def test_the_search_for_cbc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", "/absent/cbc")
    monkeypatch.setenv("PATH", "/absent")
    with pytest.raises(MilpError, match="install coinor-cbc"):
        cbc.find_cbc()


def test_a_missing_temporary_folder_is_a_milp_error(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_folder.rmdir()
    with pytest.raises(MilpError, match="cannot be run"):
        run_cbc(knapsack(), time_limit_s=5.0)
