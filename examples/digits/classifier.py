"""Which digit is it? A small convolutional network, SGD with momentum on a cosine schedule."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from digits.data import split
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def build_model(width: int) -> nn.Module:
    """Logits (n, 10) from images (n, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.GroupNorm(4, 2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 10),
    )


def task(spec: TrainerSpec, width: int = 32, learning_rate: float = 0.05) -> Task:
    """The classifier; `evaluate` gives the accuracy on digits it was not trained on."""
    train, held_out = split()
    model = build_model(width)
    # Weights before a normalisation only shrink where they decay faster, until a step is too large for them.
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4)
    steps = spec.epochs * -(-len(train) // spec.global_batch)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(model(images), labels, label_smoothing=0.1)

    def evaluate(model: nn.Module) -> dict[str, float]:
        images, labels = held_out.tensors
        return {"accuracy": (model(images).argmax(1) == labels).float().mean().item()}

    return Task(
        model=model,
        dataset=train,
        loss=loss,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        evaluate=evaluate,
        evaluate_every_epochs=5,
    )
