"""The same training for Oakum: everything but the loop is taken from the script as it is."""

import torch
from torch.nn.functional import cross_entropy

from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from porting.train import ShiftedDigits, VisionTransformer


def task(spec: TrainerSpec) -> Task:
    """What to train; how often, in which batches and on how many nodes is the spec's matter."""
    model, dataset = VisionTransformer(), ShiftedDigits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = spec.epochs * -(-len(dataset) // spec.global_batch)
    return Task(
        model=model,
        dataset=dataset,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
    )
