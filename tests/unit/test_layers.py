"""Arrows only point down: solver and worker never meet, and neither knows the service."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOLVER = ROOT / "solver" / "oakum_solver"
WORKER = ROOT / "worker" / "oakum_worker"
FORBIDDEN_TO_SOLVER = {"oakum_worker", "oakum_service", "torch", "sqlalchemy", "fastapi"}
FORBIDDEN_TO_WORKER = {"oakum_solver", "oakum_service", "sqlalchemy", "fastapi"}
PIPELINES = ("partition", "operations", "communication", "chimera", "schedules", "torch_orders", "validation")
SIMULATED_PIPELINES = ("simulation", "formulas", "drawing", "costs", "layouts")
WITHOUT_TORCH = (
    *("__init__", "spec", "protocol", "launch", "errors", "parallel/__init__", "parallel/pipeline/__init__"),
    *(f"parallel/pipeline/{name}" for name in PIPELINES + SIMULATED_PIPELINES),
)
"""Modules of the worker that the service imports."""


def imported_packages(module: Path) -> set[str]:
    """Top-level packages that the module names in any import, those inside functions included."""
    packages = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            packages.add(node.module.partition(".")[0])
    return packages


def offenders(folder: Path, forbidden: set[str]) -> dict[str, set[str]]:
    """Module -> what it imports and must not."""
    found = {
        str(module.relative_to(ROOT)): imported_packages(module) & forbidden for module in folder.rglob("*.py")
    }
    assert found, f"no module under {folder}"
    return {module: packages for module, packages in found.items() if packages}


def test_the_solver_knows_neither_worker_nor_service_nor_their_libraries() -> None:
    assert offenders(SOLVER, FORBIDDEN_TO_SOLVER) == {}


def test_the_worker_knows_neither_solver_nor_service_nor_their_libraries() -> None:
    assert offenders(WORKER, FORBIDDEN_TO_WORKER) == {}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_the_service_imports_of_the_worker_needs_no_torch(name: str) -> None:
    module = WORKER / f"{name}.py"
    if not module.exists():
        pytest.skip(f"there is no {module.relative_to(ROOT)}")
    assert "torch" not in imported_packages(module)
