"""The stack's training in rounds of MapReduce: what `rbm-digits.yaml` names."""

import numpy as np

from oakum_worker.map_reduce.job import Arrays
from oakum_worker.map_reduce.rounds import RoundTask, map_reduce_task
from oakum_worker.spec import TrainerSpec
from rbm.data import digits
from rbm.machines import StackedMachines, blocks_of, first_state, propagated, sigmoid

WIDTHS = (256, 128, 30)


def task(
    spec: TrainerSpec, widths: tuple[int, ...] = WIDTHS, block: int = 32, mnist: str | None = None
) -> RoundTask:
    """Every layer gets an equal part of the spec's epochs; `evaluate` tells the stack's reconstruction error."""
    images, _ = digits(mnist)
    held_out, _ = digits(mnist, held_out=True)
    blocks = blocks_of(images, block)
    rounds = -(-len(blocks) // spec.global_batch)
    layers = len(widths)
    job = StackedMachines(layers, rounds * -(-spec.epochs // layers), rounds, spec.seed)

    def evaluate(state: Arrays) -> dict[str, float]:
        return {"reconstruction_mse": float(((decoded(state, held_out, layers) - held_out) ** 2).mean())}

    state = first_state((images.shape[1], *widths), spec.seed)
    return map_reduce_task(job, state, blocks, evaluate=evaluate, evaluate_every_epochs=10)


def decoded(state: Arrays, images: np.ndarray, layers: int) -> np.ndarray:
    """The images through the stack and back."""
    activities = propagated(state, images, layers)
    for layer in reversed(range(layers)):
        activities = sigmoid(activities @ state[f"w{layer}"].T + state[f"c{layer}"])
    return activities
