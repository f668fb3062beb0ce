"""What a stage computes, keeps and hands on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.errors import TaskError
from oakum_worker.parallel.pipeline.stages import Stage
from oakum_worker.profiling.live_memory import LiveMemory
from pipeline_ranks import Share, consecutive


def build_chain(*layers: nn.Module) -> Chain:
    return Chain(layers=layers, inputs=lambda batch: batch, loss=lambda output, batch: output.square().mean())


def linear(seed: int, bias: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 3, bias=bias).double()


def points(num_samples: int = 4) -> torch.Tensor:
    return torch.randn(num_samples, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def share_of(chain: Chain, *sizes: int) -> Share:
    return Share(chain, points(sum(sizes)), consecutive(sizes))


def gradients_alone(chain: Chain, batch: torch.Tensor) -> list[torch.Tensor]:
    parameters = [p for layer in chain.layers for p in layer.parameters()]
    chain(nn.Module(), batch).backward()
    return taken(parameters)


def taken(parameters: list[Any]) -> list[torch.Tensor]:
    """Gradients, which are gone then."""
    gradients = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return gradients


def through(stages: list[Stage], work: Share, number: int = 0, *, split: bool = False) -> None:
    """Run a micro-batch forward and backward through all of the stages."""
    values: Any = None
    for stage in stages:
        values = stage.forward(work, number, values)
    gradients: tuple[torch.Tensor, ...] = ()
    for stage in reversed(stages):
        gradients = (stage.backward_input if split else stage.backward)(work, number, gradients)
    if split:
        for stage in stages:
            stage.backward_weight(work, number)


@each("split", [False, True])
@each("recompute", [False, True])
def test_stages_make_the_gradients_of_the_whole_chain(recompute: bool, split: bool) -> None:
    chain = build_chain(linear(1), nn.Tanh(), linear(2), nn.ReLU(), linear(3))
    expected = gradients_alone(chain, points())
    stages = [Stage(chain, layers, recompute=recompute) for layers in (range(2), range(2, 4), range(4, 5))]
    for _ in range(2):
        through(stages, share_of(chain, 4), split=split)
        made = taken([p for layer in chain.layers for p in layer.parameters()])
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-15)
    assert [stage.num_live for stage in stages] == [0, 0, 0]


class Detached(nn.Module):
    """Lets nothing before it learn."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.detach()


@pytest.mark.parametrize("split", [False, True])
def test_a_stage_that_lets_no_gradient_through_hands_on_zeros(split: bool) -> None:
    chain = build_chain(linear(1), Detached(), linear(2))
    stages = [Stage(chain, range(number, number + 1)) for number in range(3)]
    through(stages, share_of(chain, 4), split=split)
    first, last = (taken(stage.parameters) for stage in (stages[0], stages[2]))
    assert [gradient.unique().tolist() for gradient in first] == [[0.0], [0.0]]
    assert all(gradient.any() for gradient in last)


def test_weights_have_no_gradient_until_the_second_part_of_a_split_backward() -> None:
    chain = build_chain(linear(1), linear(2))
    first, last = Stage(chain, range(1)), Stage(chain, range(1, 2))
    work = share_of(chain, 4)
    last.forward(work, 0, first.forward(work, 0))
    first.backward_input(work, 0, last.backward_input(work, 0))
    assert [p.grad for p in first.parameters + last.parameters] == [None] * 4
    assert (first.num_live, last.num_live) == (1, 1)
    first.backward_weight(work, 0)
    assert [p.grad is None for p in first.parameters + last.parameters] == [False, False, True, True]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_chain_may_be_cut_before_a_layer_that_works_in_place(recompute: bool) -> None:
    chain = build_chain(linear(1), nn.ReLU(inplace=True), linear(2), linear(3), nn.ReLU(inplace=True))
    expected = gradients_alone(chain, points())
    cuts = range(1), range(1, 3), range(3, 4), range(4, 5)
    stages = [Stage(chain, layers, recompute=recompute) for layers in cuts]
    for _ in range(2):
        through(stages, share_of(chain, 4))
        made = taken([p for layer in chain.layers for p in layer.parameters()])
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_first_layer_that_works_in_place_leaves_the_batch_as_it_was(recompute: bool) -> None:
    chain = build_chain(nn.ReLU(inplace=True), linear(1))
    work = share_of(chain, 4)
    through([Stage(chain, range(1), recompute=recompute), Stage(chain, range(1, 2))], work)
    torch.testing.assert_close(work.batch, points())


class Masked(nn.Module):
    """Hands on what it computes, a mask of each kind, and a number that no one uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(4)

    def forward(self, values: torch.Tensor, *masks: torch.Tensor) -> Any:
        made = self.linear(values)
        return made, values.detach() > 0, torch.ones(1, dtype=torch.float64), made.sum(1)


@pytest.mark.parametrize("recompute", [False, True])
def test_only_tensors_that_require_gradients_get_them(recompute: bool) -> None:
    chain = build_chain(Masked(), Masked(), Masked())
    first, second = Stage(chain, range(1), recompute=recompute), Stage(chain, range(1, 2), recompute=recompute)
    work = share_of(chain, 2, 2)
    for number in range(2):
        handed: Any = first.forward(work, number)
        assert [value.requires_grad for value in handed] == [True, False, False, True]
        assert [value.grad_fn for value in handed] == [None] * 4
        given: Any = second.forward(work, number, handed)
        ones = tuple(torch.ones_like(value) for value in given if value.requires_grad)
        of_first, of_unused = second.backward(work, number, ones)
        assert of_first.shape == (2, 3)
        assert of_unused.tolist() == [0, 0]
        assert first.backward(work, number, (of_first, of_unused)) == ()


def test_a_stage_without_weights_passes_gradients_on_unless_nothing_before_it_is_trained() -> None:
    frozen = linear(1).requires_grad_(False)
    chain = build_chain(frozen, nn.Tanh(), linear(2))
    stages = [Stage(chain, range(1)), Stage(chain, range(1, 2)), Stage(chain, range(2, 3))]
    work = share_of(chain, 4)
    values: Any = stages[1].forward(work, 0, stages[0].forward(work, 0))
    assert not values.requires_grad
    stages[2].forward(work, 0, values)
    assert stages[2].backward(work, 0) == ()
    assert stages[1].backward(work, 0) == ()
    assert stages[0].backward_input(work, 0) == ()
    stages[0].backward_weight(work, 0)
    assert all(p.grad is None for p in frozen.parameters())
    assert all(p.grad is not None for p in chain.layers[2].parameters())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(5)
        self.with_graph: list[bool] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.with_graph.append(torch.is_grad_enabled())
        return self.linear(values)


def test_recomputation_keeps_no_graph_once_it_knows_what_requires_gradients() -> None:
    layers = Counting(), Counting()
    chain = build_chain(*layers)
    first, last = (Stage(chain, range(at, at + 1), recompute=True) for at in range(2))
    work = share_of(chain, 2, 2)
    for number in range(2):
        last.forward(work, number, first.forward(work, number))
    for number in range(2):
        first.backward(work, number, last.backward(work, number))
    assert layers[0].with_graph == [True, False, True, True]  # The first forward pass tells.
    assert layers[1].with_graph == [True, True]  # Of the last stage backward comes at once.


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputation_keeps_inputs_alone_until_the_backward_pass_of_each_micro_batch(recompute: bool) -> None:
    width, num_samples, num_micro_batches = 64, 16, 6
    layers = [nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(5)]
    chain = build_chain(*layers)
    first, last = (Stage(chain, layers, recompute=recompute) for layers in (range(4), range(4, 5)))
    work = Share(chain, torch.ones(num_samples * num_micro_batches, width), consecutive([num_samples] * 6))
    through([first, last], work)  # the first one tells what recomputation has to know
    ones = torch.ones(num_samples, width)
    with LiveMemory() as memory:
        memory.count(
            [work.batch, ones, *first.parameters, *(p.grad for p in first.parameters if p.grad is not None)]
        )
        before_bytes = memory.live_bytes
        for number in range(num_micro_batches):
            first.forward(work, number)
        kept_bytes = memory.live_bytes - before_bytes
        for number in range(num_micro_batches):
            first.backward(work, number, (ones,))
    # What Tanh returns is all that is kept within a layer.
    one_bytes = 4 * ones.nbytes
    assert kept_bytes == (0 if recompute else num_micro_batches * one_bytes)
    passing_bytes = one_bytes + 2 * layers[0][0].weight.nbytes  # while one is computed
    assert memory.peak_bytes <= before_bytes + kept_bytes + passing_bytes


class Listing(nn.Module):
    def forward(self, values: torch.Tensor) -> Any:
        return [values]


def test_a_layer_that_returns_no_tensor_is_named() -> None:
    chain = build_chain(Listing(), linear(1))
    with pytest.raises(TaskError, match=r"layer 0 of the chain \(Listing\) returned a list"):
        Stage(chain, range(1)).forward(share_of(chain, 2), 0)


def test_inputs_that_are_no_tensors_are_refused() -> None:
    chain = Chain([linear(1)], inputs=lambda batch: {"points": batch}, loss=lambda output, batch: output.mean())
    with pytest.raises(TaskError, match="the chain's `inputs` returned dict"):
        Stage(chain, range(1)).forward(share_of(chain, 2), 0)
