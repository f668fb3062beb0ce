"""Where the samples lie in what is drawn, also where a micro-batch has as many samples as a sequence has steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.randomness.batch_dims import BatchDims, Seen
from oakum_worker.randomness.sample_randomness import SampleRandomness
from oakum_worker.rehearsal import rehearse
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

CPU = torch.device("cpu")
STEPS, WIDTH = 6, 4
SIZES = 8, 3, 5
"""Samples of the micro-batches that are rehearsed; none of the sizes is STEPS."""

Function = Callable[[torch.Tensor], torch.Tensor]


def sequence_first(x: torch.Tensor) -> torch.Tensor:
    """Dropout of batch-first and of sequence-first tensors in turn. `x`: (samples, steps, width)."""
    x = F.dropout(x, 0.2)
    x = F.dropout(x.transpose(0, 1), 0.5).transpose(0, 1)
    return F.dropout(x, 0.2)


def recomputed(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = checkpoint(sequence_first, F.dropout(x, 0.2), use_reentrant=False)
    return made


class First(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sequence_first(x)


def of_a_chain(x: torch.Tensor) -> torch.Tensor:
    chain = Chain([First(), First()], inputs=lambda batch: batch, loss=lambda output, _: output)
    made: torch.Tensor = chain(nn.Identity(), x)
    return made


def heads_in_front(x: torch.Tensor) -> torch.Tensor:
    """Dropout of (samples * heads, steps, width): a batch of STEPS samples is found in both dimensions."""
    return F.dropout(x.repeat_interleave(2, 0), 0.5)[::2]


def noise_of_none(x: torch.Tensor) -> torch.Tensor:
    """Noise for each step of a sequence, which all samples share, though there may be as many of them."""
    return x + torch.randn(STEPS, WIDTH)


FUNCTIONS: dict[str, Function] = {
    "sequence first": sequence_first,
    "sequence first, recomputed in the backward pass": recomputed,
    "layers of a chain": of_a_chain,
    "heads in front": heads_in_front,
    "sizes of no sample": noise_of_none,
}


@contextmanager
def rehearsed(function: Function, inputs: torch.Tensor) -> Iterator[BatchDims]:
    dims = BatchDims()
    seen: list[Seen] = []
    for size in SIZES:
        with dims.observed() as one:
            drawn(function, inputs[:size], dims)
        seen.append(one)
    dims.learn(seen)
    yield dims


def drawn(function: Function, inputs: torch.Tensor, dims: BatchDims | None, first: int = 0) -> torch.Tensor:
    inputs = inputs.clone().requires_grad_()
    randomness = SampleRandomness(CPU, always=True, dims=dims)
    with randomness.samples(5, first, len(inputs)) as call:
        made: torch.Tensor = call(function, inputs)
        made.square().sum().backward()
    assert inputs.grad is not None
    return torch.stack((made.detach(), inputs.grad))


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.rand(24, STEPS, WIDTH, dtype=torch.float64) + 1


@each("name", FUNCTIONS)
def test_as_many_samples_as_steps_draw_what_they_draw_in_any_other_number(name: str, inputs: torch.Tensor) -> None:
    function = FUNCTIONS[name]
    with rehearsed(function, inputs) as dims:
        whole = drawn(function, inputs, dims)
        for first in range(0, len(inputs), STEPS):
            part = drawn(function, inputs[first : first + STEPS], dims, first)
            torch.testing.assert_close(part, whole[:, first : first + STEPS])
            by_size_alone = drawn(function, inputs[first : first + STEPS], None, first)
            assert not torch.allclose(by_size_alone, part)


def test_a_rank_that_joins_has_learned_from_the_state(inputs: torch.Tensor) -> None:
    with rehearsed(sequence_first, inputs) as dims:
        joining = BatchDims()
        joining.load_state_dict(dims.state_dict())
        assert torch.equal(*(drawn(sequence_first, inputs[:STEPS], one) for one in (dims, joining)))


def test_a_pass_of_other_calls_goes_by_its_sizes(inputs: torch.Tensor) -> None:
    """Where control flow differs from the rehearsal's, a place that does not fit its sizes is forgotten."""
    with rehearsed(sequence_first, inputs) as dims:

        def other(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(F.dropout(x, 0.2), 0.5)

        assert torch.equal(drawn(other, inputs[:5], dims), drawn(other, inputs[:5], None))


@each(("sizes", "misplaced"), [((8, 3, 5), False), ((8, STEPS, 2), True)])
def test_learning_tells_of_a_pass_that_took_its_samples_to_lie_elsewhere(
    sizes: tuple[int, ...], misplaced: bool, inputs: torch.Tensor
) -> None:
    dims, seen = BatchDims(), list[Seen]()
    for size in sizes:
        with dims.observed() as one:
            drawn(sequence_first, inputs[:size], dims)
        seen.append(one)
    assert dims.learn(seen) is misplaced


def test_the_rehearsal_of_a_task_learns(inputs: torch.Tensor) -> None:
    model = nn.Linear(WIDTH, 1).double()
    task = Task(
        model=model,
        dataset=TensorDataset(inputs),
        loss=lambda model, batch: model(sequence_first(batch[0])).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    spec = TrainerSpec.model_validate({"name": "t", "entrypoint": "t:t", "global_batch": STEPS, "epochs": 1})
    dims = BatchDims()
    assert not rehearse(task, spec, budget_s=60, batch_dims=dims)
    assert list(dims.state_dict()["dims"].values()) == [0, 1, 0]
