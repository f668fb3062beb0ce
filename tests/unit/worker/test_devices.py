"""What runs differently on GPUs: the same tests there, over NCCL, and on the CPU."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.devices import undisturbed_clock
from oakum_worker.parallel.normalisation import SynchronisedBatchNorm, normalise
from oakum_worker.parallel.pipeline.measuring import measure_chain
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.subgroups import StoreSubgroups
from oakum_worker.parallel.torus import TorusAllReduce, TorusShape
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.task import Task
from pipeline_ranks import STAND_IN, Pipeline, Training, in_threads, train_alone, train_in_threads
from training_ranks import Points, build_spec


def devices(number: int) -> pytest.MarkDecorator:
    """Run on the CPU, on that many GPUs where they are there, and on what stands in for GPUs where ranks talk and
    the process may use it (`test_over_stand_in`)."""
    too_few = torch.cuda.device_count() < number
    gpus = pytest.param("cuda", marks=pytest.mark.skipif(too_few, reason=f"needs cuda: {number} devices"))
    stand_in = ["stand_in"] if number > 1 and STAND_IN in os.environ else []
    return pytest.mark.parametrize("device", ["cpu", *stand_in, gpus])


@devices(2)
@each("name", ["1f1b", "chimera", "zero-bubble", "message-driven"])
def test_a_pipeline_makes_the_weights_of_a_single_process(name: str, device: str) -> None:
    schedule = build("1f1b" if name == "message-driven" else name, num_workers=2, num_micro_batches=4)
    training = Training(num_steps=3, sizes=(2,) * 4)
    pipeline = Pipeline(schedule, message_driven=name == "message-driven", kind=device)
    expected = train_alone(training).weights
    for outcome in train_in_threads(pipeline, training):
        for parameter, weight in outcome.weights.items():
            torch.testing.assert_close(weight, expected[parameter], rtol=0, atol=1e-9)


@devices(4)
def test_a_chimera_of_four_workers_has_links_in_both_directions(device: str) -> None:
    """Pairs of ranks in falling order, and ranks that have formed different numbers of groups before."""
    schedule = build("chimera", num_workers=4, num_micro_batches=4)
    training = Training(num_steps=2)
    expected = train_alone(training).weights
    for outcome in train_in_threads(Pipeline(schedule, kind=device), training):
        for parameter, weight in outcome.weights.items():
            torch.testing.assert_close(weight, expected[parameter], rtol=0, atol=1e-9)


@devices(4)
@each("length", [8, 9])
def test_a_torus_sums_over_all_ranks(length: int, device: str) -> None:
    tensors = [torch.randn(length, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]

    def run(rank: int, subgroups: StoreSubgroups) -> torch.Tensor:
        torus = TorusAllReduce.form(TorusShape(2, 2), rank, subgroups)
        flat = tensors[rank].to(device, copy=True)
        summed = torus.start(flat).wait().cpu()
        torus.close()
        return summed

    first, *others = in_threads(4, run, kind=device)
    torch.testing.assert_close(first, torch.stack(tensors).sum(0))
    assert all(torch.equal(first, other) for other in others)


@devices(2)
def test_synchronised_batch_norm_is_that_of_the_whole_batch(device: str) -> None:
    torch.manual_seed(0)
    whole = nn.BatchNorm1d(3).double()
    samples = torch.randn(7, 3, dtype=torch.float64)
    shares = samples[:5], samples[5:]
    expected = whole(samples).split((5, 2))

    def run(rank: int, subgroups: StoreSubgroups) -> torch.Tensor:
        layer = SynchronisedBatchNorm(3).double().to(device)
        group = subgroups.form("all", (0, 1))
        normalise(nn.Sequential(layer), "synchronised").join(group, subgroups)
        normalised: torch.Tensor = layer(shares[rank].to(device))
        return normalised.detach().cpu()

    for one, other in zip(in_threads(2, run, kind=device), expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-12, atol=1e-12)


class PointsOn(Points):
    """Points that are read onto a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.inputs, self.targets = self.inputs.to(device), self.targets.to(device)


def build_task(device: str) -> Task:
    layers = [nn.Linear(5, 256), nn.Tanh(), nn.Linear(256, 2)]
    model = nn.Sequential(*layers).double().to(device)
    chain = Chain(layers, inputs=lambda batch: batch[0], loss=lambda out, batch: (out - batch[1]).square().mean())
    optimizer = torch.optim.Adam(model.parameters())
    return Task(model=model, dataset=PointsOn(device), loss=chain, optimizer=optimizer, chain=chain)


@devices(1)
def test_what_a_layer_keeps_and_takes_is_measured(device: str) -> None:
    task = build_task(device)
    assert task.chain is not None
    profile = measure_chain(task, task.chain, [4])
    assert [layer.activation_bytes for layer in profile.layers] == [5 * 8, 256 * 8, (256 + 2) * 8]
    assert all(layer.forward_s[0] > 0 and layer.backward_s[0] > 0 for layer in profile.layers)


@devices(1)
def test_a_micro_batch_takes_what_it_allocates_at_its_peak(device: str) -> None:
    """Weights, gradients and two moments stand; each sample adds what its layers keep."""
    probe = Probe(build_task(device), build_spec(), 1 << 30)
    small, large = probe.footprint(256), probe.footprint(512)
    assert small is not None
    assert large is not None
    num_parameters = 5 * 256 + 256 + 256 * 2 + 2
    assert 4 * 8 * num_parameters <= small.static_bytes <= 4 * 8 * num_parameters + 64
    kept_bytes = 256 * (5 + 2 * 256) * 8
    assert large.working_bytes - small.working_bytes >= kept_bytes
    assert large.working_bytes <= 2.2 * small.working_bytes


@devices(1)
def test_what_takes_more_than_the_limit_does_not_fit(device: str) -> None:
    probe = Probe(build_task(device), build_spec(), 64 << 20)
    assert probe.footprint(1 << 16) is None
    assert probe.footprint(16) is not None


def test_one_thread_is_timed_by_its_own_use_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert undisturbed_clock(torch.device("cpu")) is time.thread_time
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert undisturbed_clock(torch.device("cpu")) is time.perf_counter
