"""What `make` and `.ci/run` have run, told by programs that take the place of those in the virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_STAND_IN = """#!/bin/sh
cat > /dev/null
echo "$(basename "$0") $*"
env | grep -E '^(ARGS|MAKEFLAGS|OAKUM_TEST_REQUIRE|PYTEST_ADDOPTS|PYTHONOPTIMIZE|WORKERS)=' | sort
"""
_INHERITED = {"PYTHONOPTIMIZE": "2", "PYTEST_ADDOPTS": "--durations=5"}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder that make takes for an up-to-date virtual environment."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "ruff", "mypy", "lint-imports", "shellcheck", "oxlint", "make"):
        program = tmp_path / "bin" / name
        program.write_text(_STAND_IN)
        program.chmod(0o755)
    (tmp_path / ".dev").touch()
    return tmp_path


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, beside variables that a shell could have set."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | _INHERITED | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("target", ["test", "unit", "crash", "soak", "steady"])
def test_the_options_of_a_shell_reach_tests_and_its_optimising_does_not(environment: Path, target: str) -> None:
    told = run("make", "--silent", target, f"VENV={environment}").stdout
    assert "python -m pytest" in told or "python tools/" in told
    assert "PYTEST_ADDOPTS=--durations=5" in told
    assert "PYTHONOPTIMIZE" not in told


def test_the_soak_tries_the_random_examples_of_all_tests(environment: Path) -> None:
    lines = run("make", "--silent", "soak", f"VENV={environment}").stdout.splitlines()
    random = next(line for line in lines if "--hypothesis-profile=soak" in line)
    assert "-m hypothesis --" in random
    assert "tests/" not in random


def test_a_part_of_a_hook_that_is_missing_fails_the_linters(environment: Path, tmp_path: Path) -> None:
    assert run("make", "lint", f"VENV={environment}").returncode == 0
    hooks = tmp_path / "hooks"
    shutil.copytree(ROOT / "service/oakum_service/schedulers/slurm/hooks/scripts", hooks)
    (hooks / "common.sh").unlink()
    assert run("make", "lint", f"VENV={environment}", f"HOOKS={hooks}").returncode != 0


def test_ci_has_all_tests_run_and_each_skip_fail_that_can_be_helped(environment: Path) -> None:
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    lines = run(".ci/run", PATH=path, ARGS="-k nothing", WORKERS="1", MAKEFLAGS="n").stdout.splitlines()
    begun = [number for number, line in enumerate(lines) if line.startswith("make test ")]
    first, second = (lines[number].split("ARGS=")[1].split() for number in begun)
    assert second == [f"--ignore={folder}" for folder in first]
    assert all((ROOT / folder).is_dir() for folder in first)
    for number in begun:
        assert lines[number + 1 : number + 3] == ["OAKUM_TEST_REQUIRE=all", "PYTEST_ADDOPTS=--durations=5"]
