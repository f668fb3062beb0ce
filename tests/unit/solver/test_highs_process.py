"""HiGHS may crash, hang or be missing: it costs an error, and leaves neither process nor file."""

import tempfile
import time
from pathlib import Path

import pulp
import pytest

from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError
from oakum_solver.highs import run_highs
from processes import any_runs


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that starts empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def knapsack(weights: tuple[int, ...] = (3, 2, 2), room: int = 5) -> pulp.LpProblem:
    """A model with three things, the first of which is worth most."""
    model = pulp.LpProblem("knapsack", pulp.LpMaximize)
    x, y, z = (model.add_variable(name, cat=pulp.LpBinary) for name in "xyz")
    model += 5 * x + 4 * y + 3 * z
    model += weights[0] * x + weights[1] * y + weights[2] * z <= room
    return model


def install_fake(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a module in the place of HiGHS's own, for children."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "highspy.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_highs_solves_a_model_and_leaves_no_file(temporary_folder: Path) -> None:
    pytest.importorskip("highspy")
    answer = run_highs(knapsack(), time_limit_s=10.0)
    assert answer.values == {"x": 1.0, "y": 1.0, "z": 0.0}
    assert answer.optimal
    assert answer.bound == pytest.approx(9.0)
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.parametrize("room", [0, 3, 4, 7])
def test_highs_and_cbc_answer_alike(room: int) -> None:
    pytest.importorskip("highspy")
    assert run_highs(knapsack(room=room), 10.0).values == run_cbc(knapsack(room=room), 10.0).values


def test_a_model_without_a_solution_is_a_milp_error(temporary_folder: Path) -> None:
    pytest.importorskip("highspy")
    with pytest.raises(MilpError, match="no solution"):
        run_highs(knapsack(room=-1), time_limit_s=10.0)
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "status -11"),
        ("raise ImportError('no highspy here')", "no highspy here"),
        ("import os; os._exit(0)", "no readable solution"),
        ("import os, sys; open(sys.argv[2], 'w').write('{\"values\":'); os._exit(0)", "no readable solution"),
    ],
    ids=["crashes", "missing", "no-file", "half-written"],
)
def test_a_highs_without_a_usable_answer_is_a_milp_error(
    module: str, complaint: str, tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake(module, tmp_path, monkeypatch)
    with pytest.raises(MilpError, match=complaint):
        run_highs(knapsack(), time_limit_s=10.0)
    assert list(temporary_folder.iterdir()) == []


def test_highs_is_told_a_limit_before_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = tmp_path / "arguments"
    install_fake(
        f"import sys; open({str(arguments)!r}, 'w').write(sys.argv[3]); sys.exit(1)", tmp_path, monkeypatch
    )
    with pytest.raises(MilpError):
        run_highs(knapsack(), time_limit_s=5.0)
    assert 4.0 < float(arguments.read_text()) < 5.0


def test_a_highs_that_hangs_is_killed_with_its_children(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    install_fake(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)\n",
        tmp_path,
        monkeypatch,
    )
    started_s = time.monotonic()
    with pytest.raises(MilpError, match="killed"):
        run_highs(knapsack(), time_limit_s=2.0)
    assert time.monotonic() - started_s < 10.0
    assert not any_runs(pids)
    assert list(temporary_folder.iterdir()) == []


def test_a_missing_temporary_folder_is_a_milp_error(temporary_folder: Path) -> None:
    temporary_folder.rmdir()
    with pytest.raises(MilpError, match="cannot be run"):
        run_highs(knapsack(), time_limit_s=10.0)
