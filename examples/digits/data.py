"""Handwritten digits that come with scikit-learn, so nothing is downloaded: 1,797 images of 8 x 8 pixels.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

NUM_HELD_OUT = 360


def split(seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """The images, (n, 1, 8, 8) in 0..1, with their digits: those to train on, and those held out."""
    table = torch.from_numpy(_load())
    images, digits = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], digits[order]
    held_out = TensorDataset(images[:NUM_HELD_OUT], labels[:NUM_HELD_OUT])
    return TensorDataset(images[NUM_HELD_OUT:], labels[NUM_HELD_OUT:]), held_out


def _load() -> np.ndarray:
    """What scikit-learn's `load_digits` reads, (n, 64 + 1). A node that joins is not to wait for its import."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("scikit-learn, which brings the digits, is not installed", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",")
