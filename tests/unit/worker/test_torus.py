"""Sums over a grid of ranks: the same as a plain all-reduce, in one collective for each phase."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cells import each
from oakum_worker.errors import GroupError
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.parallel.step_engine import StepVotes
from oakum_worker.parallel.subgroups import StoreSubgroups
from oakum_worker.parallel.torus import TorusAllReduce, TorusShape, grid, torus_hook
from torus_ranks import in_a_world
from training_ranks import Points, build_loop, build_model, digest, in_ranks, mean_squared_error

POINTS = Points()
GRIDS = [TorusShape(2, 2), TorusShape(2, 3), TorusShape(3, 2)]


def subgroups_of(store: dist.Store, rank: int, nodes: Sequence[int] = ()) -> StoreSubgroups:
    return StoreSubgroups(store, rank, timedelta(seconds=60), node_sizes=nodes)


def sum_over(shape: TorusShape, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sum the ranks' tensors by the torus; returns each rank's result."""
    store = dist.HashStore()

    def run(_: dist.ProcessGroup, rank: int) -> torch.Tensor:
        torus = TorusAllReduce.form(shape, rank, subgroups_of(store, rank))
        flat = tensors[rank].clone()
        assert torus.start(flat).wait() is flat
        torus.close()
        return flat

    return in_ranks(len(tensors), run)


@each(
    ("nodes", "expected"),
    [
        ([4, 4], TorusShape(4, 2)),
        ([2] * 4, TorusShape(2, 4)),
        ([8, 4], TorusShape(4, 3)),  # two rows on the first node
        ([1, 3, 2, 6], TorusShape(3, 4)),  # no row of several ranks fits into each node
        ([1] * 6, TorusShape(2, 3)),
        ([1] * 16, TorusShape(4, 4)),
        ([4] * 864, TorusShape(4, 864)),
    ],
)
def test_a_row_lies_within_a_node_or_the_grid_is_about_square(nodes: list[int], expected: TorusShape) -> None:
    assert grid(sum(nodes), nodes) == expected
    assert not expected.is_plain


@each("nodes", [[1], [1, 1], [1] * 7, [4, 4, 4, 1], [8], [3]])
def test_ranks_that_make_no_grid_are_one_line(nodes: list[int]) -> None:
    assert grid(sum(nodes), nodes).is_plain


def test_ranks_of_which_no_node_is_known_make_a_grid_about_square() -> None:
    assert grid(12) == TorusShape(3, 4)


def test_every_rank_is_in_one_row_and_one_column() -> None:
    shape = TorusShape(3, 2)
    assert [shape.row_of(rank) for rank in range(6)] == 3 * [[0, 1, 2]] + 3 * [[3, 4, 5]]
    assert [shape.column_of(rank) for rank in range(6)] == 2 * [[0, 3], [1, 4], [2, 5]]


@each("dtype", [torch.float64, torch.bfloat16])
@each("length", [12, 13, 1], ids=["divides", "does not divide", "shorter than a row"])
@each("shape", GRIDS, ids=str)
def test_the_sum_is_that_of_all_ranks_with_the_same_bits_on_each(
    shape: TorusShape, length: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(length)
    num_ranks = shape.row_length * shape.num_rows
    tensors = [torch.randn(length, generator=generator, dtype=torch.float64).to(dtype) for _ in range(num_ranks)]
    first, *others = sum_over(shape, tensors)
    # Two roundings to bfloat16's 8 bits on the way, of sums of up to about 5.
    tolerance = 1e-14 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(first.double(), torch.stack(tensors).double().sum(0), rtol=0, atol=tolerance)
    assert all(torch.equal(first, other) for other in others)


class Recording(dist.Work):
    """A row, or a column, of two ranks of which the other sends zeros."""

    def __init__(self, events: list[str], name: str) -> None:
        super().__init__()
        self._events, self._name = events, name
        self.sent_from: list[int] = []

    def size(self) -> int:
        return 2

    def alltoall_base(self, received: torch.Tensor, sent: torch.Tensor, *_: Any) -> Recording:
        self._events.append(f"{self._name}: reduce-scatter {len(sent)}")
        self.sent_from.append(sent.data_ptr())
        received.zero_()
        received[: len(sent) // 2] = sent[: len(sent) // 2]
        return self

    def allreduce(self, tensors: list[torch.Tensor], *_: Any) -> Recording:
        self._events.append(f"{self._name}: all-reduce {len(tensors[0])}")
        return self

    def _allgather_base(self, gathered: torch.Tensor, own: torch.Tensor) -> Recording:
        self._events.append(f"{self._name}: all-gather {len(gathered)}")
        gathered[: len(own)] = own
        return self

    def wait(self, *_: Any) -> bool:
        return True


class Grouped:
    """Gives out groups that were made before."""

    node_sizes = ()

    def __init__(self, row: Any, column: Any) -> None:
        self._groups = {"torus-row-0": row, "torus-column-0": column}

    def form(self, name: str, _: Any) -> Any:
        return self._groups[name]


class RankZero:
    """The generation's group, over which nothing is to be sent."""

    def rank(self) -> int:
        return 0


def test_each_bucket_takes_one_collective_of_each_kind_on_slices_of_the_right_size() -> None:
    events: list[str] = []
    model = build_model()  # of 16, 2, 8 and 40 parameters in the order of their gradients
    reducer = GradientReducer(model, all_reduce="torus", first_bucket_bytes=18 * 8, bucket_bytes=1 << 20)
    subgroups = Grouped(Recording(events, "row"), Recording(events, "column"))
    reducer.join(RankZero(), 4, subgroups=subgroups)  # type: ignore[arg-type]
    reducer.begin(8, 8)
    for start in (0, 4):  # only the last micro-batch sends
        reducer.backward(mean_squared_error(model, POINTS[start : start + 4]), 4, last=start == 4)
    reducer.finish()
    assert events == [
        *("row: reduce-scatter 18", "column: all-reduce 9", "row: all-gather 18"),
        *("row: reduce-scatter 52", "column: all-reduce 26", "row: all-gather 52"),
    ]


def test_a_bucket_of_any_length_is_summed_where_it_is() -> None:
    """Filled up where gradients are laid out, instead of being copied for each sum."""
    model = nn.ParameterList([torch.ones(3), torch.ones(3)])
    row = Recording([], "row")
    reducer = GradientReducer(model, all_reduce="torus", first_bucket_bytes=1, bucket_bytes=1)
    reducer.join(RankZero(), 4, subgroups=Grouped(row, Recording([], "column")))  # type: ignore[arg-type]
    reducer.begin(1, 1)
    reducer.backward(model[0].sum() + model[1].sum(), 1, last=True)
    reducer.finish()
    assert row.sent_from == [parameter.grad.data_ptr() for parameter in reversed(model)]


def test_buckets_are_on_their_way_while_backward_still_runs() -> None:
    sent = threading.Event()

    class Telling(Recording):
        def alltoall_base(self, *arguments: Any) -> Recording:
            sent.set()
            return super().alltoall_base(*arguments)

    model = build_model()
    model[0].weight.register_hook(lambda _: None if sent.wait(10) else pytest.fail("nothing was sent"))
    reducer = GradientReducer(model, all_reduce="torus", first_bucket_bytes=1, bucket_bytes=1)
    reducer.join(RankZero(), 4, subgroups=Grouped(Telling([], "row"), Recording([], "column")))  # type: ignore[arg-type]
    reducer.begin(4, 4)
    reducer.backward(mean_squared_error(model, POINTS[:4]), 4, last=True)
    reducer.finish()


@pytest.mark.parametrize("shape", [TorusShape(2, 2), TorusShape(2, 3)], ids=str)
def test_the_hook_of_torchs_own_data_parallelism_gives_what_the_default_gives(shape: TorusShape) -> None:
    num_ranks = shape.row_length * shape.num_rows
    store = dist.HashStore()
    original = build_model().float()

    def run(gloo: dist.ProcessGroup, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        group = dist.ProcessGroup(store, rank, num_ranks)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        torus = TorusAllReduce.form(shape, rank, subgroups_of(store, rank))
        found = []
        for hook in (None, torus_hook):
            # Buckets of a few parameters each.
            model = DistributedDataParallel(copy.deepcopy(original), process_group=group, bucket_cap_mb=1e-4)
            if hook is not None:
                model.register_comm_hook(torus, hook)
            inputs, targets = POINTS[2 * rank : 2 * rank + 2]
            for _ in range(2):
                model.zero_grad()
                mean_squared_error(model, (inputs.float(), targets.float())).backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
        torus.close()
        return found[0], found[1]

    for default, ours in in_ranks(num_ranks, run):
        torch.testing.assert_close(ours, default, rtol=0, atol=1e-6)


@each("bucket_bytes", [1, 200, 1 << 20], ids=["many buckets", "some buckets", "one bucket"])
@each("nodes", [[1] * 4, [3, 3], [4, 2]])
def test_the_gradient_is_that_of_the_whole_batch_with_the_same_bits_on_all_ranks(
    nodes: list[int], bucket_bytes: int
) -> None:
    num_ranks = sum(nodes)
    original = build_model()
    whole = copy.deepcopy(original)
    expected_loss = mean_squared_error(whole, POINTS[:11])
    expected_loss.backward()
    bounds = [11 * rank // num_ranks for rank in range(num_ranks + 1)]
    store = dist.HashStore()

    def run(group: dist.ProcessGroup, rank: int) -> tuple[float, list[torch.Tensor]]:
        model = copy.deepcopy(original)
        caps = {"first_bucket_bytes": bucket_bytes, "bucket_bytes": bucket_bytes}
        reducer = GradientReducer(model, all_reduce="torus", **caps)
        reducer.join(group, num_ranks, subgroups=subgroups_of(store, rank, nodes))
        for _ in range(2):  # nothing of the step before may be left in the second
            reducer.begin(bounds[rank + 1] - bounds[rank], 11)
            for index in range(bounds[rank], bounds[rank + 1]):
                last = index == bounds[rank + 1] - 1
                reducer.backward(mean_squared_error(model, POINTS[index : index + 1]), 1, last=last)
            reduced = reducer.finish()
        reducer.join(None, 1)
        return reduced.loss, [parameter.grad for parameter in model.parameters()]

    results = in_ranks(num_ranks, run)
    for loss, gradients in results:
        assert loss == pytest.approx(expected_loss.item(), rel=1e-12)
        torch.testing.assert_close(gradients, [p.grad for p in whole.parameters()], rtol=1e-12, atol=1e-12)
        assert all(map(torch.equal, gradients, results[0][1]))


def test_gradients_in_half_precision_are_summed_without_rounding_in_between() -> None:
    store = dist.HashStore()

    def run(group: dist.ProcessGroup, rank: int) -> list[Any]:
        model = nn.ParameterDict({"w": torch.zeros(3, dtype=torch.bfloat16)})
        reducer = GradientReducer(model, all_reduce="torus")
        reducer.join(group, 4, subgroups=subgroups_of(store, rank))
        reducer.begin(1, 4)
        # Of the sum 1 + 3 / 256 bfloat16's 8 bits hold no summand but the first.
        reducer.backward((model["w"] * (4.0 if rank == 0 else 4 / 256)).sum(), 1, last=True)
        reducer.finish()
        reducer.join(None, 1)
        return model["w"].grad.tolist()

    assert in_ranks(4, run) == 4 * [3 * [torch.tensor(1 + 3 / 256).bfloat16().item()]]


@pytest.mark.parametrize(("num_ranks", "with_subgroups"), [(4, False), (3, True)], ids=["no subgroups", "prime"])
def test_where_there_is_no_grid_the_ranks_use_a_plain_all_reduce(
    num_ranks: int, with_subgroups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    all_reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda t, **kw: sent.append(kw["group"].size()) or all_reduce(t, **kw))
    store = dist.HashStore()

    def run(group: dist.ProcessGroup, rank: int) -> int:
        reducer = GradientReducer(build_model(), all_reduce="torus")
        reducer.join(group, num_ranks, subgroups=subgroups_of(store, rank) if with_subgroups else None)
        reducer.begin(0, 0, lambda: StepVotes(signal=1))
        return reducer.finish().votes.signal

    assert in_ranks(num_ranks, run) == [num_ranks] * num_ranks
    assert sent == [num_ranks] * num_ranks


def test_a_trainer_with_a_torus_takes_the_same_steps() -> None:
    """Through a spec, with the grid changing as ranks leave: 4, 3, 2 in both directions."""
    expected = build_loop()
    losses = [expected.step().loss for _ in range(6)]
    loops = [build_loop(parallel={"all_reduce": "torus"}) for _ in range(4)]
    found: list[float] = []
    for num_ranks in (4, 3, 2):
        store = dist.HashStore()

        def run(group: dist.ProcessGroup, rank: int, store: dist.Store = store, size: int = num_ranks) -> Any:
            loops[rank].join(group, rank, size, subgroups=subgroups_of(store, rank))
            return [loops[rank].step().loss for _ in range(2)]

        results = in_ranks(num_ranks, run)
        assert all(result == results[0] for result in results)
        assert len({digest(loop) for loop in loops[:num_ranks]}) == 1
        found += results[0]
    assert found == pytest.approx(losses, rel=1e-9)


class Broken(Recording):
    def allreduce(self, *_: Any) -> Recording:
        raise RuntimeError("Connection closed by peer")


def test_a_lost_rank_is_a_group_error_and_later_buckets_are_not_sent() -> None:
    events: list[str] = []
    model = build_model()
    reducer = GradientReducer(model, all_reduce="torus", first_bucket_bytes=1, bucket_bytes=1)
    subgroups = Grouped(Recording(events, "row"), Broken(events, "column"))
    reducer.join(RankZero(), 4, subgroups=subgroups)  # type: ignore[arg-type]
    reducer.begin(4, 4)
    with in_a_world():
        reducer.backward(mean_squared_error(model, POINTS[:4]), 4, last=True)
        with pytest.raises(GroupError, match=r"a rank was lost during a step: .*Connection closed by peer"):
            reducer.finish()
    reducer.join(None, 1)
    assert events == ["row: reduce-scatter 2"]


def test_a_rank_that_died_before_a_column_was_formed_is_a_group_error() -> None:
    store = dist.HashStore()

    def run(group: dist.ProcessGroup, rank: int) -> None:
        if rank == 3:
            return
        reducer = GradientReducer(build_model(), all_reduce="torus")
        with pytest.raises(GroupError, match="the group torus-"):
            reducer.join(group, 4, subgroups=StoreSubgroups(store, rank, timedelta(seconds=1)))

    in_ranks(4, run)


def test_what_is_stuck_in_a_dead_group_is_never_waited_for() -> None:
    released = threading.Event()

    class Hanging(Recording):
        def wait(self, *_: Any) -> bool:
            released.wait(60)
            raise RuntimeError("Connection reset by peer")

    others = set(threading.enumerate())
    model = build_model()
    reducer = GradientReducer(model, all_reduce="torus")
    reducer.join(RankZero(), 4, subgroups=Grouped(Hanging([], "row"), Recording([], "column")))  # type: ignore[arg-type]
    reducer.begin(4, 4)
    reducer.backward(mean_squared_error(model, POINTS[:4]), 4, last=True)
    [stuck] = {thread for thread in threading.enumerate() if thread.name == "torus"} - others
    reducer.join(None, 1)
    reducer.begin(4, 4)
    reducer.backward(mean_squared_error(model, POINTS[:4]), 4, last=True)
    assert reducer.finish().loss > 0
    assert stuck.is_alive()
    released.set()
    stuck.join(10)
    assert not stuck.is_alive()
