"""The rules by which torch's functions work on spread tensors.

Each module registers its rules in `oakum_worker.parallel.tensor.spread.RULES`; importing this package registers
all.
"""

from oakum_worker.parallel.tensor.operations import (
    attention,
    cross_entropy,
    dropout,
    elementwise,
    embedding,
    linear,
    normalisation,
    reductions,
    shapes,
)

__all__ = [
    "attention",
    "cross_entropy",
    "dropout",
    "elementwise",
    "embedding",
    "linear",
    "normalisation",
    "reductions",
    "shapes",
]
