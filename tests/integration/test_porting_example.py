"""The example of moving a script over: short, and the same training."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from oakum_worker.spec import read_spec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task

torch.set_num_threads(1)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_moving_over_takes_less_than_twenty_lines() -> None:
    tree = ast.parse((EXAMPLES / "porting" / "elastic.py").read_text(encoding="utf-8"))
    code = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.keyword)}
    docstrings = sum(ast.get_docstring(node) is not None for node in [tree, *tree.body] if hasattr(node, "body"))
    assert len(code) - docstrings < 20


def test_the_moved_script_learns() -> None:
    pytest.importorskip("sklearn")
    loop = TrainingLoop(load_task(spec := read_spec(EXAMPLES / "digits-transformer.yaml")), spec)
    losses = [loop.step().loss for _ in range(90)]
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])
