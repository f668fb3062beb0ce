"""A pipeline's task whose messages are large for what its stages compute: one is nearly always on its way."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from oakum_worker.chain import Chain
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

_NUM_SAMPLES, _NUM_FEATURES, _NUM_CLASSES = 20_000, 16, 4


def task(spec: TrainerSpec, width: int) -> Task:
    """A classifier of six layers as a chain. Between its layers, and so its stages, go `width` float32 numbers for
    each sample."""
    layers = [nn.Linear(_NUM_FEATURES, width), *(nn.Identity() for _ in range(4)), nn.Linear(width, _NUM_CLASSES)]
    model = nn.Sequential(*layers)
    features = torch.randn(_NUM_SAMPLES, _NUM_FEATURES, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(_NUM_SAMPLES) % _NUM_CLASSES
    chain = Chain(
        layers=layers,
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Task(model=model, dataset=TensorDataset(features, labels), loss=chain, chain=chain, optimizer=optimizer)
