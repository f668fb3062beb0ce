"""Classifier and autoencoder that begin from the stack's weights, trained by backpropagation on any nodes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

from oakum_worker.checkpoint.weights import load_weights
from oakum_worker.map_reduce.rounds import RoundState
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from rbm.data import digits
from rbm.machines import first_state
from rbm.pretraining import WIDTHS

_LEAN, _TURN, _STRETCH, _SHIFT = 0.4, 0.2, 0.15, 0.2
"""The most by which `_by_other_hands` changes an image: sideways by so much of its height, down by so much of its
width, of its size, of half of its size."""
_NOISE = 0.05
"""Standard deviation of a pixel, which is in 0..1."""


def stack(begin_from: str | None, widths: tuple[int, ...], seed: int) -> Mapping[str, np.ndarray]:
    """The stack's state from a trainer's folder of checkpoints, or random where there is none."""
    state = first_state(widths, seed)
    if begin_from is None:
        return state
    model = RoundState(state)
    load_weights(Path(begin_from), model)
    return model.arrays()


class Recogniser(nn.Module):
    """Logits (n, 10) from images (n, pixels), through the stack's lower two pairs of layers."""

    def __init__(self, state: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_linear(state[f"w{at}"].T, state[f"b{at}"]) for at in range(2))
        self.head = nn.Linear(state["w1"].shape[1], 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            images = torch.sigmoid(layer(images))
        return self.head(images)


class Autoencoder(nn.Module):
    """Images (n, pixels) through a code back to images in 0..1; all layers are sigmoids."""

    def __init__(self, state: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        depth = sum(name[0] == "w" for name in state)
        self.encoder = nn.ModuleList(_linear(state[f"w{at}"].T, state[f"b{at}"]) for at in range(depth))
        self.decoder = nn.ModuleList(_linear(state[f"w{at}"], state[f"c{at}"]) for at in reversed(range(depth)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for layer in (*self.encoder, *self.decoder):
            images = torch.sigmoid(layer(images))
        return images


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weight)))
        layer.bias.copy_(torch.from_numpy(np.array(bias)))
    return layer


def _by_other_hands(images: torch.Tensor) -> torch.Tensor:
    """The images as others would have written them: each leaning, turned, stretched and shifted by chance, and a
    little noisy. Thirteen people wrote the set, and few of its digits lean as a hurried hand's do."""
    n, side = len(images), round(images.shape[1] ** 0.5)
    draws = 2 * torch.rand(n, 2, 3) - 1
    most = torch.tensor([[_STRETCH, _LEAN, _SHIFT], [_TURN, _STRETCH, _SHIFT]])
    maps = torch.eye(2, 3) + most * draws
    squares = images.view(n, 1, side, side)
    places = nn.functional.affine_grid(maps, list(squares.shape), align_corners=False)
    written = nn.functional.grid_sample(squares, places, mode="bicubic", align_corners=False).flatten(1)
    return (written + _NOISE * torch.randn_like(written)).clamp(0, 1)


def classifier(
    spec: TrainerSpec,
    begin_from: str | None = None,
    widths: tuple[int, ...] = WIDTHS,
    learning_rate: float = 1e-2,
    mnist: str | None = None,
) -> Task:
    """Which digit is it? `evaluate` gives the accuracy on held-out digits."""
    (images, labels), held_out = digits(mnist), digits(mnist, held_out=True)
    model = Recogniser(stack(begin_from, (images.shape[1], *widths), spec.seed))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(_by_other_hands(batch[0])), batch[1])

    def evaluate(model: nn.Module) -> dict[str, float]:
        right = model(torch.from_numpy(held_out[0])).argmax(1).numpy() == held_out[1]
        return {"accuracy": float(right.mean())}

    return _task(spec, model, loss, evaluate, images, labels, learning_rate)


def autoencoder(
    spec: TrainerSpec,
    begin_from: str | None = None,
    widths: tuple[int, ...] = WIDTHS,
    learning_rate: float = 1e-2,
    mnist: str | None = None,
) -> Task:
    """Digits through a code of 30 numbers; `evaluate` gives the squared error per pixel on held-out digits."""
    (images, labels), held_out = digits(mnist), digits(mnist, held_out=True)
    model = Autoencoder(stack(begin_from, (images.shape[1], *widths), spec.seed))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return mse_loss(model(batch[0]), batch[0])

    def evaluate(model: nn.Module) -> dict[str, float]:
        clean = torch.from_numpy(held_out[0])
        return {"reconstruction_mse": float(mse_loss(model(clean), clean))}

    return _task(spec, model, loss, evaluate, images, labels, learning_rate)


def _task(
    spec: TrainerSpec,
    model: nn.Module,
    loss: Callable[[nn.Module, tuple[torch.Tensor, torch.Tensor]], torch.Tensor],
    evaluate: Callable[[nn.Module], dict[str, float]],
    images: np.ndarray,
    labels: np.ndarray,
    learning_rate: float,
) -> Task:
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    steps = spec.epochs * -(-len(images) // spec.global_batch)
    return Task(
        model=model,
        dataset=TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)),
        loss=loss,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        evaluate=evaluate,
        evaluate_every_epochs=5,
    )
