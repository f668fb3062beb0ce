"""An exponential moving average of the weights, for every way of sharing the work.

    average <- average + (1 - decay) (weight - average)      after each step that is taken

beginning with the weights after the first step, as `torch.optim.swa_utils.AveragedModel` does. Each parameter's
average is kept in the optimizer's state of that parameter, beside its moments. So an average is on the rank that
has its parameter (also if the rank has some rows of a sharded parameter, or some layers of a pipeline), and it is
sent to ranks that join and written to copies and checkpoints as moments are. Buffers are not averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from oakum_worker.errors import TaskError
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.parallel.offload_storage import WEIGHTS
from oakum_worker.spec_options import AverageSpec
from oakum_worker.torch_internals import lerp_in_place

AVERAGE = "average"
"""The average's key in the optimizer's state of a parameter."""


class WeightAverage:
    """Keeps the average of the parameters that an optimizer has at present and that require gradients."""

    def __init__(self, optimizer: Optimizer, spec: AverageSpec) -> None:
        """Raises `TaskError` if parameters are in bfloat16 or float16, which are too coarse for an average, and
        the optimizer has no float32 weights."""
        self._optimizer = optimizer
        self._decay = spec.decay
        halves = [p for p in self._parameters() if p.dtype in (torch.bfloat16, torch.float16)]
        if halves and not isinstance(optimizer, Offloaded):
            raise TaskError(
                f"ema is asked for and the model has {halves[0].dtype} parameters (one of shape "
                f"{tuple(halves[0].shape)}), in which a step's share of the average is rounded away: keep the "
                "weights in float32 and set the spec's precision"
            )

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Context in which the averages are taken out of the optimizer's state, so that the optimizer's step does
        not meet them. Puts them back at its end."""
        kept = [(p, self._optimizer.state[p].pop(AVERAGE)) for p in self._averaged()]
        try:
            yield
        finally:
            for parameter, average in kept:
                self._optimizer.state[parameter][AVERAGE] = average

    @torch.no_grad()
    def update(self) -> None:
        """Add the present weights to the averages. To be called after each step that was not skipped."""
        averages, weights = [], []
        for parameter in self._parameters():
            state, weight = self._optimizer.state[parameter], self._weight(parameter)
            if AVERAGE in state:
                average = _local(state[AVERAGE])
                averages.append(average)
                weights.append(_local(weight).to(average.device))
            else:
                state[AVERAGE] = weight.detach().clone()
        if averages:
            lerp_in_place(averages, weights, 1 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the model's weights are the averages; on exit the weights are restored bit for bit.

        The trainer's state must not be read within it. Before the first step the weights stay as they are.
        """
        kept = self._put_in_place()
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, value in kept:
                    weight.copy_(value)

    @torch.no_grad()
    def _put_in_place(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        kept = []
        for parameter in self._averaged():
            weight = _local(parameter)
            kept.append((weight, weight.clone()))
            weight.copy_(_local(self._optimizer.state[parameter][AVERAGE]))
        return kept

    def _averaged(self) -> list[torch.Tensor]:
        """The parameters that have an average."""
        return [p for p in self._parameters() if AVERAGE in self._optimizer.state.get(p, {})]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]

    def _weight(self, parameter: torch.Tensor) -> torch.Tensor:
        """The weight in its highest precision: an offloaded optimizer has it in float32 on the host."""
        state: dict[str, Any] = self._optimizer.state[parameter]
        return state[WEIGHTS] if isinstance(self._optimizer, Offloaded) and WEIGHTS in state else parameter


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a sharded tensor; any other tensor whole, detached."""
    tensor = tensor.detach()
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
