"""Sums of gradients over the ranks that hold a stage: threads of this process over gloo."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError
from oakum_worker.parallel.pipeline import gradients as gradients_module
from oakum_worker.parallel.pipeline.gradients import GradientSum, StageGradients
from oakum_worker.parallel.subgroups import StoreSubgroups, Subgroups
from oakum_worker.parallel.waiting import begin_all_reduce
from pipeline_ranks import die_once, in_threads
from torus_ranks import in_a_world


class Weight(nn.Module):
    """A layer with one weight of some elements."""

    def __init__(self, num_elements: int = 3, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_elements, dtype=dtype))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.weight


def build_chain(*layers: nn.Module) -> Chain:
    return Chain(layers=layers, inputs=lambda batch: batch, loss=lambda output, batch: output.sum())


def tied_chain() -> Chain:
    """Layers 0 and 2 share a weight."""
    first, last = Weight(), Weight()
    last.weight = first.weight
    return build_chain(first, Weight(), last)


def add(parameter: nn.Parameter, value: float) -> None:
    """Let a backward pass add to the parameter's gradient."""
    (parameter * value).sum().backward()


LAYERS = range(1), range(1, 2), range(2, 3)


def summed(
    chain: Callable[[], Chain],
    holders: list[list[int]],
    compute: Callable[[Chain, int, StageGradients], None],
    **options: Any,
) -> list[dict[int, list[float]]]:
    """For each rank the gradients of its stages after `compute(chain, rank, gradients)`, by stage."""

    def run(rank: int, subgroups: Subgroups) -> dict[int, list[float]]:
        model = chain()
        cuts = LAYERS[: len(holders)]
        gradients = StageGradients(model, cuts, holders, rank, subgroups, **options)
        for _ in range(2):
            gradients.begin()
            compute(model, rank, gradients)
            gradients.finish()
        held = [stage for stage, ranks in enumerate(holders) if rank in ranks]
        weights: dict[int, Any] = {stage: model.layers[stage].weight for stage in held}
        return {stage: weight.grad.tolist() for stage, weight in weights.items()}

    return in_threads(1 + max(map(max, holders)), run)


def test_a_stages_gradients_are_the_sum_over_its_holders_alone() -> None:
    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        # Ranks come to their stages in different orders.
        for stage in {0: (0, 1), 1: (1, 0), 2: (2,)}[rank]:
            add(chain.layers[stage].weight, 10.0**rank)
            gradients.sync(stage)

    made = summed(lambda: build_chain(Weight(), Weight(), Weight()), [[0, 1], [0, 1], [2]], compute)
    assert made == [{0: [11.0] * 3, 1: [11.0] * 3}, {0: [11.0] * 3, 1: [11.0] * 3}, {2: [100.0] * 3}]


def test_a_tied_weight_is_summed_once_over_all_that_hold_any_of_its_stages() -> None:
    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        # Rank 0 has both of the weight's stages, rank 1 the first and rank 2 the last.
        for stage in {0: (0, 2), 1: (0, 1), 2: (2, 1)}[rank]:
            add(chain.layers[stage].weight, 10.0**rank)
            gradients.sync(stage)

    made = summed(tied_chain, [[0, 1], [1, 2], [0, 2]], compute)
    tied, other = [1 + 1 + 10 + 100.0] * 3, [110.0] * 3
    assert made == [{0: tied, 2: tied}, {0: tied, 1: other}, {1: other, 2: tied}]


def test_a_tied_weight_on_one_rank_alone_has_what_both_layers_gave() -> None:
    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        for stage in (2, 1, 0):
            add(chain.layers[stage].weight, stage + 1.0)
            gradients.sync(stage)

    assert summed(tied_chain, [[0], [0], [0]], compute) == [{0: [4.0] * 3, 1: [2.0] * 3, 2: [4.0] * 3}]


def test_summing_begins_as_soon_as_the_last_of_the_weights_stages_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []

    def recorded(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
        sent.append(tensor.numel())
        return begin_all_reduce(tensor, group)

    monkeypatch.setattr(gradients_module, "begin_all_reduce", recorded)
    counts: list[int] = []

    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        for stage in (0, 1, 2):
            add(chain.layers[stage].weight, 1.0)
            gradients.sync(stage)
            if rank == 0:
                counts.append(len(sent))

    def alone(rank: int, subgroups: Subgroups) -> None:
        gradients = StageGradients(tied_chain(), LAYERS, [[0, 1]] * 3, rank, subgroups)
        if rank == 0:
            gradients.begin()
            compute(tied_chain(), rank, gradients)

    in_threads(2, alone)
    assert counts == [0, 1, 2]


def test_weights_that_took_no_part_have_zeros_with_and_without_other_holders() -> None:
    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        if rank == 1:
            add(chain.layers[0].weight, 5.0)

    made = summed(lambda: build_chain(Weight(), Weight(), Weight()), [[0, 1], [0, 1], [0]], compute)
    assert made == [{0: [5.0] * 3, 1: [0.0] * 3, 2: [0.0] * 3}, {0: [5.0] * 3, 1: [0.0] * 3}]


def test_many_small_buckets_give_the_same_sums() -> None:
    def chain() -> Chain:
        layer = Weight()
        layer.extend = nn.ParameterList([torch.ones(2, dtype=torch.float64) for _ in range(5)])  # type: ignore
        return build_chain(layer)

    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        for number, parameter in enumerate(chain.layers[0].parameters()):
            add(parameter, 10.0**rank * (number + 1))
        gradients.sync(0)
        gradients.finish()
        assert [p.grad.tolist()[0] for p in gradients.parameters] == [11.0 * n for n in range(1, 7)]

    summed(chain, [[0, 1]], compute, first_bucket_bytes=8, bucket_bytes=16)


@pytest.mark.parametrize("num_holders", [1, 2])
def test_half_precision_gradients_of_many_micro_batches_are_summed_in_float32(num_holders: int) -> None:
    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        # 256 + 1 is 256 in bfloat16.
        for value in (256.0, *[1.0] * 8):
            add(chain.layers[0].weight, value / num_holders)
        gradients.sync(0)

    holders = [list(range(num_holders))]
    made = summed(lambda: build_chain(Weight(dtype=torch.bfloat16)), holders, compute)
    assert made == [{0: [264.0] * 3}] * num_holders


def test_a_lost_holder_is_a_group_error() -> None:
    formed = threading.Event()

    def run(rank: int, subgroups: StoreSubgroups) -> None:
        chain = build_chain(Weight())
        gradients = StageGradients(chain, LAYERS[:1], [[0, 1]], rank, subgroups)
        if rank == 1:
            die_once(formed, subgroups)
        else:
            formed.set()
            gradients.begin()
            add(chain.layers[0].weight, 1.0)
            with pytest.raises(GroupError, match=r"a rank was lost during a step|could not be sent"):
                gradients.finish()

    with in_a_world():
        in_threads(2, run)


class Aborted(dist.ProcessGroup):
    """A group as the word that the generation is over leaves it: it takes no collective any more."""

    def allreduce(self, *_: Any) -> dist.Work:
        raise RuntimeError("NCCL communicator was aborted")


class OfAborted:
    """`Subgroups` of such groups."""

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup:
        return Aborted(0, len(ranks))  # type: ignore[call-arg]  # which torch's annotations lack


def test_a_group_that_takes_nothing_any_more_is_a_group_error() -> None:
    gradients = StageGradients(build_chain(Weight()), LAYERS[:1], [[0, 1]], 0, OfAborted())
    gradients.begin()
    with in_a_world(), pytest.raises(GroupError, match="could not be sent: NCCL communicator was aborted"):
        gradients.sync(0)


def test_complex_gradients_are_summed() -> None:
    def compute(chain: Chain, rank: int, gradients: StageGradients) -> None:
        weight = chain.layers[0].weight
        (weight * complex(rank, 1.0)).sum().real.backward()
        gradients.sync(0)

    made = summed(lambda: build_chain(Weight(2, torch.complex128)), [[0, 1]], compute)
    assert made == [{0: [1.0 - 2j] * 2}] * 2


def test_stages_without_weights_need_no_group() -> None:
    def run(rank: int, subgroups: Subgroups) -> list[nn.Parameter]:
        gradients = StageGradients(build_chain(nn.Tanh()), LAYERS[:1], [[0, 1]], rank, subgroups)
        gradients.begin()
        gradients.sync(0)
        gradients.finish()
        return gradients.parameters

    assert in_threads(2, run) == [[], []]


def test_a_sum_that_nobody_has_any_more_keeps_no_parameter() -> None:
    """In half precision it is told of each gradient."""
    layer = Weight(dtype=torch.bfloat16)
    one = GradientSum([layer.weight], {0}, None, (1 << 20, 1 << 20))
    one.begin()
    layer(torch.ones(3, dtype=torch.bfloat16)).sum().backward()
    one.send()
    one.finish(1.0)
    assert layer.weight.grad is not None
    kept = weakref.ref(layer.weight)
    del layer, one
    gc.collect()
    assert kept() is None
