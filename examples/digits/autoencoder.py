"""Restore digits from noisy ones: a convolutional denoising autoencoder with a code of 32 numbers, and Adam."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from digits.data import split
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def build_model(width: int, code: int) -> nn.Module:
    """Images (n, 1, 8, 8) through a code (n, code) back to images."""
    encoder = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, code),
    )
    decoder = nn.Sequential(
        nn.Linear(code, 2 * width * 16),
        nn.GELU(),
        nn.Unflatten(1, (2 * width, 4, 4)),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(width, 1, 3, padding=1),
    )
    return nn.Sequential(encoder, decoder)


def task(spec: TrainerSpec, width: int = 32, code: int = 32, noise: float = 0.3) -> Task:
    """The autoencoder; `evaluate` gives its error per pixel on clean images it was not trained on."""
    train, held_out = split()
    model = build_model(width, code)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = spec.epochs * -(-len(train) // spec.global_batch)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, _ = batch
        return mse_loss(model(images + noise * torch.randn_like(images)), images)

    def evaluate(model: nn.Module) -> dict[str, float]:
        images, _ = held_out.tensors
        return {"reconstruction_mse": mse_loss(model(images), images).item()}

    return Task(
        model=model,
        dataset=train,
        loss=loss,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        evaluate=evaluate,
        evaluate_every_epochs=25,
    )
