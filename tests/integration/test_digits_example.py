"""The data of the digits examples."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from running_service import EXAMPLES

_SPLIT = "import sys, digits.data; digits.data.split(); print(*sorted({'sklearn', 'scipy'} & set(sys.modules)))"


def test_the_digits_are_scikit_learns_and_cost_no_import_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    monkeypatch.syspath_prepend(EXAMPLES)
    from digits.data import split

    train, held_out = split()
    pixels, digits = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images = torch.cat([held_out.tensors[0], train.tensors[0]])
    assert torch.equal(images, torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16)
    assert torch.equal(torch.cat([held_out.tensors[1], train.tensors[1]]), torch.tensor(digits)[order])
    done = subprocess.run([sys.executable, "-c", _SPLIT], cwd=EXAMPLES, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
