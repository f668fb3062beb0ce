"""Handwritten digits that come with scikit-learn, so nothing is downloaded: 1,797 images of 8 x 8 pixels.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

NUM_HELD_OUT = 360


def split(seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """The images, (n, 1, 8, 8) in 0..1, with their digits: those to train on, and those held out."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], torch.tensor(digits)[order]
    held_out = TensorDataset(images[:NUM_HELD_OUT], labels[:NUM_HELD_OUT])
    return TensorDataset(images[NUM_HELD_OUT:], labels[NUM_HELD_OUT:]), held_out
