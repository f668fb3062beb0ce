"""Measurements of a chain, and the arrangement that follows from them."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.parallel import arranging as parallel_arranging
from oakum_worker.parallel.link_costs import LinkCosts, measure_links
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.pipeline.costs import Tied
from oakum_worker.parallel.pipeline.layouts import Choices, choose
from oakum_worker.parallel.pipeline.measuring import measure_chain, sizes_up_to
from oakum_worker.parallel.reshard import gather_documents
from oakum_worker.protocol import Station
from oakum_worker.task import Task
from training_ranks import Points, build_spec, in_ranks, mean_squared_error


class Counting(nn.Module):
    """Passes on what it gets, and counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return values + torch.rand(())


def build_task(num_layers: int = 4) -> Task:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), Counting(), *(nn.Linear(8, 8) for _ in range(num_layers - 3)), nn.Linear(8, 2)]
    model = nn.Sequential(*layers).double()
    chain = Chain(layers=list(model), inputs=lambda batch: batch[0], loss=_loss)
    optimizer = torch.optim.Adam(model.parameters())
    return Task(model=model, dataset=Points(), loss=mean_squared_error, optimizer=optimizer, chain=chain)


def _loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(output, batch[1])


def arranger(stages: int | str = "auto", **options: Any) -> Arranger:
    return Arranger(build_task(), build_spec(parallel={"pipeline": {"stages": stages, **options}}))


def test_a_layer_is_measured_with_all_that_it_keeps_and_hands_on() -> None:
    task = build_task()
    assert task.chain is not None
    profile = measure_chain(task, task.chain, [1, 4])
    first = profile.layers[0]
    assert profile.micro_batches == (1, 4)
    assert profile.input_bytes == 5 * 8
    assert (first.parameter_bytes, first.optimizer_bytes, first.output_bytes) == (48 * 8, 2 * 48 * 8, 8 * 8)
    assert first.activation_bytes == 5 * 8  # the layer's input, for the gradient of its weight
    assert all(seconds > 0 for layer in profile.layers for seconds in (*layer.forward_s, *layer.backward_s))


def test_weights_that_layers_share_are_found() -> None:
    task = build_task(5)
    assert task.chain is not None
    task.chain.layers[3].weight = task.chain.layers[2].weight  # type: ignore[assignment]
    profile = measure_chain(task, task.chain, [1])
    assert profile.tied == (Tied((2, 3), 64 * 8, 2 * 64 * 8),)
    known, newcomer = arranger(), arranger()
    known._measure = lambda: profile  # type: ignore[method-assign]
    known.measure_model()
    newcomer.agree([json.loads(json.dumps(known.measurements))])
    assert newcomer.profile == profile


def test_measuring_leaves_nothing_behind() -> None:
    task = build_task()
    assert task.chain is not None
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    measure_chain(task, task.chain, [1, 2])
    assert all(torch.equal(before[name], value) for name, value in task.model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert not task.optimizer.state


@each(("most", "sizes"), [(1, [1]), (6, [1, 2, 4]), (1000, [1, 2, 4, 8, 16, 32, 64])])
def test_no_size_is_measured_that_a_batch_has_not(most: int, sizes: list[int]) -> None:
    assert sizes_up_to(most) == sizes


def build_refusing(smallest: int) -> Task:
    """A task with a layer that refuses fewer samples at once."""

    class Picky(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            if len(values) < smallest:
                raise ValueError(f"{len(values)} are too few")
            return values

    task = build_task()
    assert task.chain is not None
    layers = [*task.chain.layers, Picky()]
    return replace(task, chain=replace(task.chain, layers=layers))


def test_sizes_that_a_layer_refuses_are_left_out_and_no_micro_batch_is_as_small() -> None:
    spec = build_spec(global_batch=9, parallel={"pipeline": {"stages": 2, "schedule": "gpipe"}})
    arranger = Arranger(build_refusing(4), spec)
    arranger.measure_model()
    assert arranger.measurements["profile"]["micro_batches"] == (4, 8)
    assert arranger.measurements["profile"]["smallest"] == 4
    for world_size in range(1, 6):
        found = arranger(world_size)
        assert 9 // found.num_replicas // found.schedule.num_micro_batches >= 4


def test_a_batch_norm_that_takes_no_single_sample_is_measured() -> None:
    task = build_batch_norm()
    assert task.chain is not None
    assert measure_chain(task, task.chain, [1, 2]).micro_batches == (2,)


def build_batch_norm() -> Task:
    task = build_task()
    assert task.chain is not None
    first, *rest = task.chain.layers
    return replace(task, chain=replace(task.chain, layers=[first, nn.BatchNorm1d(8).double(), *rest]))


def test_a_chain_that_refuses_every_size_is_told_of() -> None:
    task = build_refusing(100)
    assert task.chain is not None
    with pytest.raises(TaskError, match=r"no micro-batch of 1, 2 samples .* 2 raised ValueError: 2 are too few"):
        measure_chain(task, task.chain, [1, 2])


class Once(torch.autograd.Function):
    """Refuses a backward pass that does not reach the weights, like torch's reentrant checkpoints."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return values * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("no gradients of some inputs alone")
        return gradients[0], gradients[0].sum(0)


def test_layers_that_refuse_to_be_split_get_no_schedule_that_does() -> None:
    class Unsplittable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, dtype=torch.float64))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return Once.apply(values, self.weight)

    task = build_task()
    assert task.chain is not None
    first, *rest = task.chain.layers
    chain = replace(task.chain, layers=[first, Unsplittable(), *rest])
    profile = measure_chain(task, chain, [1])
    assert [layer.split is None for layer in profile.layers] == [False, True, False, False, False]
    choices = Choices(4, num_workers=2, schedules=("zero-bubble", "gpipe"))
    assert choose(2, profile, LinkCosts(), choices).schedule == "gpipe"


def test_layers_that_work_in_place_are_measured() -> None:
    task = build_task()
    assert task.chain is not None
    first, *rest = task.chain.layers
    chain = replace(task.chain, layers=[nn.Sigmoid(), first, nn.ReLU(inplace=True), *rest])
    assert len(measure_chain(task, chain, [2]).layers) == 6


@each("other", [1, 2])
def test_two_ranks_measure_their_link_and_the_others_wait_for_nothing(other: int) -> None:
    found = in_ranks(3, lambda group, rank: measure_links(group, rank, other))
    assert [rank for rank, links in enumerate(found) if links is not None] == [0, other]
    for links in found:
        assert links is None or (links.latency_s > 0 and links.bandwidth_bytes_per_s > 0)


def test_links_within_a_node_are_measured_again_once_there_are_two_nodes() -> None:
    """A trainer that has begun on one node goes by its slower links as soon as it has them."""

    def run(group: dist.ProcessGroup, rank: int) -> list[tuple[bool, dict[str, float]]]:
        known, found = arranger(), []
        known.measure_model()
        for nodes in ("aaa", "aaa", "aab", "aab", "aaa"):
            stations = [Station(node, str(number)) for number, node in enumerate(nodes)]
            known.measure(group, rank, stations, lambda document: gather_documents(document, group, 3))
            assert known.known.links is not None
            found.append((known.known.spans_nodes, asdict(known.links)))
        return found

    first, *others = in_ranks(3, run)
    assert others == [first, first]
    assert [spans_nodes for spans_nodes, _ in first] == [False, False, True, True, True]
    within, again, between, *later = [links for _, links in first]
    assert again == within != between
    assert later == [between, between]


@each("fragments", [("aab",), ("aaa", "aab"), ("abc", "aab")])
def test_how_much_faster_ranks_of_one_fragment_are_follows_from_links_within_it_and_between_nodes(
    fragments: tuple[str, ...],
) -> None:
    """Links within a node are not enough: fragments there reach each other by other ways than their own ranks."""

    def link(group: dist.ProcessGroup, rank: int, other: int, device: torch.device) -> LinkCosts:
        is_fast = other == 1 and of_fragments[0] == of_fragments[1]
        return LinkCosts(0.0, 1e12) if is_fast else LinkCosts(0.5, 1e3)

    group: Any = object()  # with which nothing is sent
    known = arranger(stages=2)
    known.measure_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_arranging, "measure_links", link)
        for of_fragments in fragments:
            assert known.gain_together() is None
            stations = [Station("n1" if one == "a" else "n2", one) for one in of_fragments]
            known.measure(group, 0, stations, lambda document: [document])
    gain = known.gain_together()
    if fragments == ("abc", "aab"):  # once measured between nodes, links are not measured again
        assert gain is None
        return
    assert gain is not None
    assert gain > 2
    assert known.links == LinkCosts(0.5, 1e3)
    newcomer = arranger(stages=2)
    newcomer.agree([newcomer.measurements, known.measurements])
    newcomer._num_together = 2
    assert newcomer.gain_together() == pytest.approx(gain)


@each(("kind", "expected_bytes"), [("cpu", 2 << 30), ("cuda", 8 << 30)])
def test_the_ranks_of_a_node_share_its_memory_and_no_gpu(kind: str, expected_bytes: int) -> None:
    one = Arranger(build_task(), build_spec(parallel={"pipeline": {}}, ranks_per_node=4))
    one._device = torch.device(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_arranging, "device_memory_bytes", lambda _: 8 << 30)
        assert one._memory_bytes(None) == expected_bytes


def test_what_the_lowest_rank_knows_is_what_all_go_by() -> None:
    known, newcomer = arranger(), arranger()
    known.measure_model()
    newcomer.agree([newcomer.measurements, known.measurements])
    assert newcomer.measurements == known.measurements
    assert (newcomer.known.profile, newcomer.known.links) == (known.profile, None)
    assert [newcomer(count).cuts for count in range(1, 6)] == [known(count).cuts for count in range(1, 6)]


def test_as_many_stages_as_asked_for_are_replicated_and_who_is_left_over_is_spare() -> None:
    found = arranger(stages=2, schedule="1f1b")(5)
    assert (found.num_replicas, found.schedule.num_workers, found.seat(4)) == (2, 2, None)


def test_a_stage_is_held_in_all_replicas_and_pipes() -> None:
    """In rising order, as groups of holders are formed in."""
    found = arranger(stages=4, schedule="chimera", micro_batch=1)(9)
    outer, inner = [0, 3, 4, 7], [1, 2, 5, 6]
    assert [found.holders_of(stage) for stage in range(4)] == [outer, inner, inner, outer]


def test_fewer_ranks_than_stages_hold_larger_ones() -> None:
    found = arranger(stages=4, schedule="1f1b")(3)
    assert (found.num_replicas, found.schedule.num_workers) == (1, 3)
    assert [layer for cut in found.cuts for layer in cut] == [0, 1, 2, 3]


def test_chimera_takes_an_even_number_of_ranks() -> None:
    found = arranger(stages=4, schedule="chimera")(3)
    assert (found.schedule.name, found.schedule.num_workers, found.num_replicas) == ("chimera", 2, 1)


def test_too_little_memory_is_told_once() -> None:
    tight = arranger(memory_bytes=100)
    tight.measure_model()
    with pytest.warns(TrainingWarning, match=r"needs about [\d,]+ bytes .* has 100: raise min_nodes"):
        tight(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tight(2)


def test_the_predicted_curve_is_there_when_layers_are_measured_and_it_rises() -> None:
    known = arranger()
    assert known.predicted_curve() == ()
    known.measure_model()
    points = known.predicted_curve()
    assert points[0][0] == 1
    assert list(points) == sorted(set(points))


def test_a_chain_without_layers_is_refused() -> None:
    task = replace(build_task(), chain=Chain(layers=[], inputs=lambda batch: batch, loss=_loss))
    with pytest.raises(TaskError, match="has no layer: name the model's layers"):
        Arranger(task, build_spec(parallel={"pipeline": {}}))
