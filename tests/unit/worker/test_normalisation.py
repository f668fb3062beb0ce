"""BatchNorm that ranks share, GroupNorm in its place, and what is kept of the layers that they replace."""

from __future__ import annotations

import copy
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError, TaskError, TrainingWarning
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.parallel.normalisation import (
    SynchronisedBatchNorm,
    normalise,
    warn_of_batch_norm,
)
from oakum_worker.parallel.subgroups import StoreSubgroups
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from torus_ranks import in_a_world
from training_ranks import (
    Points,
    build_loop,
    build_model,
    build_spec,
    digest,
    in_ranks,
    mean_squared_error,
    step_together,
)

POINTS = Points()
SYNCHRONISED = {"batch_norm": "synchronised"}
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def images(num_samples: int) -> torch.Tensor:
    return torch.randn(num_samples, 6, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def image_model() -> nn.Module:
    torch.manual_seed(0)
    convolution, norm = nn.Conv2d(6, 4, 2), nn.BatchNorm2d(4)
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    return nn.Sequential(nn.BatchNorm2d(6, affine=False), convolution, norm, nn.ReLU(), nn.Flatten()).double()


def loss_of(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs * torch.linspace(-1, 2, outputs.shape[1], dtype=torch.float64)).square().mean()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers())


SHARES = {
    "alone": [range(9)],
    "even": [range(4), range(4, 8)],
    "uneven": [range(7), range(7, 8), range(8, 11)],
    "one without a sample": [range(9), range(0)],
}


@each("shares", SHARES.values(), ids=SHARES.keys())
def test_outputs_gradients_and_statistics_are_those_of_the_whole_batch(shares: list[range]) -> None:
    whole, size = image_model(), max(share.stop for share in shares)
    original = copy.deepcopy(whole)
    inputs = images(size).requires_grad_()
    expected = whole(inputs)
    loss = loss_of(expected)
    loss.backward()
    assert inputs.grad is not None

    def run(group: dist.ProcessGroup, rank: int) -> tuple[torch.Tensor, torch.Tensor | None, float, nn.Module]:
        model, share = copy.deepcopy(original), shares[rank]
        norms = normalise(model, "synchronised")
        norms.join(group if len(shares) > 1 else None, None)
        reducer = GradientReducer(model)
        reducer.join(group, len(shares))
        reducer.begin(len(share), size)
        norms.begin()
        norms.counts = len(share) > 0
        own = images(size)[share or range(1)].requires_grad_()  # without a sample, one that does not count
        outputs = model(own)
        reducer.backward(loss_of(outputs), len(share), last=True)
        found_loss = reducer.finish().loss
        norms.commit()
        return outputs.detach(), own.grad, found_loss, model

    results = in_ranks(len(shares), run)
    for share, (outputs, input_gradients, found_loss, model) in zip(shares, results, strict=True):
        if share:
            torch.testing.assert_close(outputs, expected[share].detach(), **TIGHT)
            torch.testing.assert_close(input_gradients, inputs.grad[share], **TIGHT)
        assert found_loss == pytest.approx(loss.item(), rel=1e-12)
        torch.testing.assert_close(gradients(model), gradients(whole), **TIGHT)
        torch.testing.assert_close(buffers(model), buffers(whole), **TIGHT)
        assert all(map(torch.equal, buffers(model).values(), buffers(results[0][3]).values()))


@pytest.mark.parametrize("momentum", [0.1, None], ids=["moving average", "cumulative average"])
def test_running_statistics_are_updated_once_a_step_with_those_of_all_its_micro_batches(
    momentum: float | None,
) -> None:
    whole = nn.BatchNorm2d(6, momentum=momentum).double()
    ours = copy.deepcopy(whole)
    norms = normalise(ours, "synchronised")
    for step in range(2):
        batch = images(10) * (step + 1) + step
        whole(batch)
        norms.begin()
        for start, stop in ((0, 3), (3, 4), (4, 10)):
            ours(batch[start:stop])
        norms.commit()
        torch.testing.assert_close(buffers(ours), buffers(whole), **TIGHT)


def test_outside_of_a_step_running_statistics_are_updated_as_torchs_are() -> None:
    theirs = nn.BatchNorm2d(6).double()
    ours = copy.deepcopy(theirs)
    normalise(ours, "synchronised")
    for batch in images(12).split(4):
        ours(batch), theirs(batch)
    torch.testing.assert_close(buffers(ours), buffers(theirs), **TIGHT)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(images(5)), theirs(images(5)), **TIGHT)


def test_a_step_that_was_not_taken_leaves_no_statistics() -> None:
    layer = nn.BatchNorm2d(6).double()
    before = copy.deepcopy(buffers(layer))
    norms = normalise(layer, "synchronised")
    norms.begin()
    layer(100 * images(4))
    norms.begin()
    norms.commit()
    torch.testing.assert_close(buffers(layer), before, rtol=0, atol=0)


def test_a_checkpointed_layer_counts_its_samples_once() -> None:
    plain = nn.BatchNorm2d(6).double()
    repeated = copy.deepcopy(plain)
    for layer, call in ((plain, plain), (repeated, lambda x: checkpoint(repeated, x, use_reentrant=False))):
        norms = normalise(layer, "synchronised")
        norms.begin()
        call(images(5).requires_grad_()).square().sum().backward()
        norms.commit()
    assert all(map(torch.equal, buffers(repeated).values(), buffers(plain).values()))


def test_half_precision_is_normalised_in_float32() -> None:
    inputs = (images(8).float() + 100).bfloat16()
    ours = nn.BatchNorm2d(6)
    expected = copy.deepcopy(ours)(inputs.float())
    normalise(ours, "synchronised")
    outputs = ours(inputs)
    assert outputs.dtype == torch.bfloat16
    assert torch.equal(outputs, expected.bfloat16())


@pytest.mark.parametrize("micro_batch", [1, 5])
def test_a_trainer_has_the_same_losses_and_statistics_on_any_number_of_ranks(micro_batch: int) -> None:
    """Of 8 samples on 3 ranks; in micro-batches of 5 those of all ranks together are the whole batch."""
    options = {"global_batch": 8, "micro_batch": micro_batch, "parallel": SYNCHRONISED}
    loops = [build_loop(nn.BatchNorm1d(8), **options) for _ in range(3)]
    losses = step_together(loops, 7)  # the epoch's last batch of 5 samples is among them
    assert len({digest(loop) for loop in loops}) == 1
    if micro_batch == 1:
        return  # three samples are normalised at a time here, and a single one on a rank alone
    alone = build_loop(nn.BatchNorm1d(8), **options | {"micro_batch": 8})
    assert losses == pytest.approx([alone.step().loss for _ in range(7)], rel=1e-9)
    theirs, ours = (dict(loop.task.model.named_buffers()) for loop in (alone, loops[0]))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_ranks_without_a_sample_take_part_in_the_others_statistics() -> None:
    """An epoch's last batch has two samples, for three ranks."""
    loops = [build_loop(nn.BatchNorm1d(8), global_batch=51, parallel=SYNCHRONISED) for _ in range(3)]
    alone = build_loop(nn.BatchNorm1d(8), global_batch=51)
    assert step_together(loops, 4) == pytest.approx([alone.step().loss for _ in range(4)], rel=1e-9)
    for loop in loops:
        torch.testing.assert_close(buffers(loop.task.model), buffers(alone.task.model), rtol=1e-9, atol=1e-9)


def test_statistics_have_connections_of_their_own_where_they_can() -> None:
    store = dist.HashStore()
    names: list[str] = []

    class Noting(StoreSubgroups):
        def form(self, name: str, ranks: Any) -> dist.ProcessGroup | None:
            names.append(name)
            return super().form(name, ranks)

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        loop = loops[rank]
        loop.join(group, rank, 2, subgroups=Noting(store, rank, timedelta(seconds=60)))
        return [loop.step().loss for _ in range(3)]

    loops = [build_loop(nn.BatchNorm1d(8), parallel=SYNCHRONISED) for _ in range(2)]
    alone = build_loop(nn.BatchNorm1d(8))
    expected = [alone.step().loss for _ in range(3)]
    assert in_ranks(2, run) == [pytest.approx(expected, rel=1e-9)] * 2
    assert names == ["normalisation"] * 2


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_trainers_statistics_are_those_of_its_whole_batch_though_micro_batches_are_small(num_ranks: int) -> None:
    options = {"micro_batch": 2, "parallel": SYNCHRONISED}
    loops = [build_loop(nn.BatchNorm1d(8), **options) for _ in range(num_ranks)]
    step_together(loops, 1)
    plain = build_loop(nn.BatchNorm1d(8))
    plain.step()
    for loop in loops:
        torch.testing.assert_close(buffers(loop.task.model), buffers(plain.task.model), **TIGHT)


def test_plain_batch_norm_depends_on_the_number_of_ranks() -> None:
    losses = step_together([build_loop(nn.BatchNorm1d(8)) for _ in range(2)], 3)
    alone = build_loop(nn.BatchNorm1d(8))
    assert losses != pytest.approx([alone.step().loss for _ in range(3)], rel=1e-3)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_lost_rank_is_a_group_error_and_leaves_the_state_of_the_last_step(phase: str) -> None:
    loop = build_loop(nn.BatchNorm1d(8), parallel=SYNCHRONISED)
    loop.step()
    kept = digest(loop)

    class Broken(dist.Work):
        def size(self) -> int:
            return 2

        def allgather(self, received: list[list[torch.Tensor]], sent: list[torch.Tensor], *_: Any) -> Broken:
            if phase == "forward":
                raise RuntimeError("gloo: Connection closed by peer")
            for part in received[0]:
                part.copy_(sent[0])
            return self

        def allreduce(self, *_: Any) -> Broken:
            raise RuntimeError("gloo: Connection closed by peer")

        def wait(self, *_: Any) -> bool:
            return True

    loop.join(Broken(), 0, 2)  # type: ignore[arg-type]
    with in_a_world(), pytest.raises(GroupError, match="a rank was lost in a normalisation"):
        loop.step()
    assert digest(loop) == kept


def test_layers_stay_the_same_objects_with_the_same_parameters() -> None:
    model = image_model()
    layers, parameters = list(model), list(model.parameters())
    names = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    normalise(model, "synchronised")
    assert all(a is b for a, b in zip(model, layers, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == names
    before = model[2].weight.detach().clone()
    loss_of(model(images(4))).backward()
    optimizer.step()
    assert not torch.equal(model[2].weight, before)


def test_group_norm_keeps_weights_and_normalises_as_torchs_own_does() -> None:
    model = image_model()
    weight, bias = model[2].weight, model[2].bias
    normalise(model, "group")
    expected = nn.GroupNorm(2, 4).double()
    expected.load_state_dict({"weight": weight, "bias": bias})
    assert [type(layer) for layer in model.children()] == [
        nn.GroupNorm,
        nn.Conv2d,
        nn.GroupNorm,
        nn.ReLU,
        nn.Flatten,
    ]
    assert model[2].weight is weight
    assert not buffers(model)
    inputs = images(3)[:, :4]
    assert torch.equal(model[2](inputs), expected(inputs))
    assert repr(model[0]) == repr(nn.GroupNorm(3, 6, affine=False))


@each(("num_channels", "num_groups"), [(256, 32), (48, 24), (7, 1), (1, 1)])
def test_groups_are_many_and_have_two_channels_where_they_can(num_channels: int, num_groups: int) -> None:
    layer = nn.BatchNorm2d(num_channels)
    normalise(layer, "group")
    assert layer.num_groups == num_groups  # type: ignore[attr-defined]


@each("num_channels", [8, 32, 64])
def test_groups_of_vectors_are_large_enough_to_tell_values_apart(num_channels: int) -> None:
    """Of two channels one would always be -1 and the other 1, and no gradient would come through."""
    layer = nn.BatchNorm1d(num_channels)
    normalise(layer, "group")
    values = torch.randn(500, num_channels, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outputs = layer(values)
    outputs.pow(3).sum().backward()
    assert values.grad is not None
    assert values.grad.abs().median() > 0.1


def micro_batched(model: nn.Module, num_parts: int) -> list[torch.Tensor]:
    model = copy.deepcopy(model)
    for part in POINTS[:16][0].chunk(num_parts):
        (mean_squared_error(model, (part, torch.ones(len(part), 2).double())) / num_parts).backward()
    return gradients(model)


def test_group_norm_on_eight_micro_batches_is_the_full_batch_and_batch_norm_is_not() -> None:
    batch_norm = build_model(nn.BatchNorm1d(8))
    group_norm = copy.deepcopy(batch_norm)
    normalise(group_norm, "group")
    torch.testing.assert_close(micro_batched(group_norm, 8), micro_batched(group_norm, 1), **TIGHT)
    pairs = zip(micro_batched(batch_norm, 8), micro_batched(batch_norm, 1), strict=True)
    assert max((ours - theirs).abs().max().item() for ours, theirs in pairs) > 1e-2


def test_group_norm_gives_the_same_outputs_bit_for_bit_in_micro_batches() -> None:
    layer = nn.BatchNorm2d(6).double()
    normalise(layer, "group")
    whole = layer(images(16))
    assert torch.equal(torch.cat([layer(part) for part in images(16).chunk(8)]), whole)


def test_a_layer_that_may_do_anything_is_not_replaced() -> None:
    class Own(nn.BatchNorm1d):
        pass

    with pytest.raises(TaskError, match=r"batch_norm is group and 2 is a Own: only torch's own"):
        normalise(build_model(Own(8)), "group")
    assert not normalise(build_model(Own(8)), "keep").is_used


def test_a_copy_of_a_model_is_synchronised_with_nobody() -> None:
    def run(group: dist.ProcessGroup, rank: int) -> bool:
        model = nn.Sequential(nn.BatchNorm2d(6), nn.BatchNorm2d(6)).double()
        normalise(model, "synchronised").join(group, None)
        if rank == 0:  # the other one does not take part
            copied = copy.deepcopy(model)
            copied(images(4))
            assert copied[0].synchronisation is copied[1].synchronisation
        return model[0].synchronisation.group is group

    assert in_ranks(2, run) == [True, True]


def test_layers_that_a_task_has_of_itself_are_synchronised_whatever_the_spec_says() -> None:
    loops = [build_loop(SynchronisedBatchNorm(8), global_batch=8) for _ in range(2)]
    alone = build_loop(SynchronisedBatchNorm(8), global_batch=8)
    expected = [alone.step().loss for _ in range(3)]
    assert step_together(loops, 3) == pytest.approx(expected, rel=1e-9)


def test_wrong_shapes_are_explained() -> None:
    layer = SynchronisedBatchNorm(3)
    with pytest.raises(ValueError, match=r"has shape \(2, 4\): expected \(samples, 3, ...\)"):
        layer(torch.ones(2, 4))


def test_a_pipelined_model_with_batch_norm_is_warned_of() -> None:
    with pytest.warns(TrainingWarning, match=r"^0, 2 normalise by one micro-batch at a time"):
        warn_of_batch_norm(image_model())
    model = image_model()
    normalise(model, "group")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_batch_norm(model)


def test_a_pipeline_trainer_says_so_at_its_start() -> None:
    model = image_model()
    chain = Chain(list(model.children()), inputs=lambda batch: batch[0], loss=lambda output, batch: output.sum())
    task = Task(
        model=model, dataset=POINTS, loss=chain, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), chain=chain
    )
    with pytest.warns(TrainingWarning, match="set parallel.batch_norm: group"):
        TrainingLoop(task, build_spec(parallel={"pipeline": {}}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingLoop(task, build_spec(parallel={"pipeline": {}, "batch_norm": "group"}))
