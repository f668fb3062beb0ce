"""Copies of a sharded state, in peers' memory and on the disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from oakum_worker.checkpoint import dcp_rows
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.neighbour_copies import NeighbourCopies, Ring
from oakum_worker.checkpoint.sharded import ShardedCheckpoints
from oakum_worker.parallel.holdings import Holdings, Part, Place, SplitTensor
from oakum_worker.parallel.split_state import LocalState
from training_ranks import in_ranks

TENSORS = [
    SplitTensor("model.a", (7, 3), torch.float64),
    SplitTensor("model.b", (2,), torch.bfloat16),
    SplitTensor("moment.a", (7, 70_000), torch.float32),
]


def state_of(rank: int, world_size: int, value: float) -> LocalState:
    """A rank's part of a state in which every element of row r is `value` + r."""
    document = {"leaf": {"$tensor": "count", "dtype": "float64", "shape": []}, "step": value}
    document |= {
        tensor.path: {"$tensor": tensor.path, "dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape)}
        for tensor in TENSORS
    }
    rows = {tensor.path: rows_of(tensor, Part(world_size, rank), value) for tensor in TENSORS}
    return LocalState(document, {"count": torch.tensor(value, dtype=torch.float64)}, rows, TENSORS)


def rows_of(tensor: SplitTensor, part: Part, value: float) -> torch.Tensor:
    block = part.block(tensor)
    rows = tensor.empty(block)
    for index, row in enumerate(row for span in block.spans[0] for row in span):
        rows[index] = value + row
    return rows


def assert_rows(found: Any, part: Part, value: float) -> None:
    for tensor in TENSORS:
        expected = rows_of(tensor, part, value)
        assert torch.equal(found[tensor.path] if len(expected) else expected, expected)


def place(rank: int, world_size: int) -> Place:
    return Place(Holdings.one_each(world_size), rank)


def copy_once(hot: NeighbourCopies, ring: Ring, step: int) -> None:
    state = state_of(ring.place.rank, ring.place.world_size, step)
    hot.start(state, step, generation=1)
    for rows in state.rows.values():
        rows.zero_()  # the next step changes weights while the copy travels
    hot.settle()
    assert hot.arrived


@pytest.mark.parametrize("distance", [1, 2])
def test_each_rank_has_its_own_part_and_the_one_of_a_neighbour_before(distance: int) -> None:
    def as_rank(group: dist.ProcessGroup, rank: int) -> None:
        hot, ring = NeighbourCopies(), Ring(group, place(rank, 3), distance)
        hot.enter(ring)
        copy_once(hot, ring, step=20)
        (snapshot,) = hot.snapshots()
        ward = Part(3, (rank - distance) % 3)
        assert (snapshot.step, snapshot.generation) == (20, 1)
        assert snapshot.parts.keys() == {Part(3, rank), ward}
        for part, rows in snapshot.parts.items():
            assert_rows(rows, part, 20)
        assert snapshot.whole["count"] == 20

    in_ranks(3, as_rank)


def test_a_copy_replaces_the_one_before_when_all_ranks_have_it() -> None:
    def as_rank(group: dist.ProcessGroup, rank: int) -> list[list[int]]:
        hot, ring, steps = NeighbourCopies(), Ring(group, place(rank, 2), 1), []
        hot.enter(ring)
        for step in (10, 20, 30):
            copy_once(hot, ring, step)
            steps.append([snapshot.step for snapshot in hot.snapshots()])
            assert not hot.idle
            hot.confirm()
            assert hot.idle
        for part, rows in hot.snapshots()[0].parts.items():
            assert_rows(rows, part, 30)
        return steps

    assert in_ranks(2, as_rank) == [[[10], [10, 20], [20, 30]]] * 2


def test_copies_of_the_generation_before_stay_until_there_is_one_of_the_present() -> None:
    def as_rank(group: dist.ProcessGroup, rank: int) -> list[list[int]]:
        hot, ring = NeighbourCopies(), Ring(group, place(rank, 2), 1)
        hot.enter(ring)
        copy_once(hot, ring, step=10)
        hot.confirm()
        copy_once(hot, ring, step=20)
        hot.enter(ring)
        before = [snapshot.step for snapshot in hot.snapshots()]
        copy_once(hot, ring, step=25)
        hot.confirm()
        return [before, [snapshot.step for snapshot in hot.snapshots()]]

    assert in_ranks(2, as_rank) == [[[10, 20], [25]]] * 2


def test_a_copy_to_a_rank_that_never_answers_can_be_given_up() -> None:
    given_up = threading.Barrier(2)

    def as_rank(group: dist.ProcessGroup, rank: int) -> list[set[Part]]:
        hot, ring = NeighbourCopies(), Ring(group, place(rank, 2), 1)
        hot.enter(ring)
        if rank == 0:
            hot.start(state_of(0, 2, 5), 5, generation=1)
            hot.abandon()
            assert not hot.arrived
        given_up.wait(20)
        return [set(snapshot.parts) for snapshot in hot.snapshots()]

    assert in_ranks(2, as_rank) == [[{Part(2, 0)}], []]


class Ranks:
    """The writers of a checkpoint, all of them in this process."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self.warnings: list[str] = []
        self.checkpoints = DurableCheckpoints(folder, keep=2)
        self.writers = [
            ShardedCheckpoints(self.checkpoints, every_s=60, warn=self.warnings.append) for _ in range(world_size)
        ]

    def start(self, step: int) -> None:
        for rank, writer in enumerate(self.writers):
            own = place(rank, len(self.writers))
            writer.start(state_of(rank, len(self.writers), step), step, own, generation=1)
            writer.wait()

    def agree(self) -> None:
        """Add the ranks' outcomes up and tell all ranks the sums, as a training step does."""
        outcomes = [writer.outcome() for writer in self.writers]
        for writer in self.writers:
            writer.count(sum(written for written, _ in outcomes), sum(failed for _, failed in outcomes))
            writer.wait()

    def save(self, step: int) -> None:
        self.start(step)
        self.agree()


class Told:
    """Stands for all ranks: answers rank 0's list of checkpoints first, then what it is told."""

    def __init__(self, *found: str) -> None:
        self._answers = iter([[list(found)]])
        self.heard: list[Any] = []

    def __call__(self, document: Any) -> list[Any]:
        self.heard.append(document)
        return next(self._answers, [document])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("readers", [1, 2, 3, 5])
def test_what_three_ranks_have_written_any_number_reads(tmp_path: Path, readers: int) -> None:
    Ranks(tmp_path, 3).save(12)
    (checkpoint,) = DurableCheckpoints(tmp_path, keep=1).candidates()
    for rank in range(readers):
        part = Part(readers, rank)
        writer = ShardedCheckpoints(DurableCheckpoints(tmp_path, keep=1), 60, print)
        (stored,) = writer.stored(place(rank, readers), Told("step-12"))
        rows = {tensor.path: tensor.empty(part.block(tensor)) for tensor in TENSORS}
        whole, fault = stored.try_reading(TENSORS, place(rank, readers), rows)
        assert fault is None
        assert stored.path == checkpoint.path
        assert_rows(rows, part, 12)
        assert whole == {"count": torch.tensor(12, dtype=torch.float64)}


def test_a_checkpoint_is_there_when_all_shares_are_and_not_before(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.start(12)
    for writer in ranks.writers:
        writer.count(1, 0)  # one of two
        writer.wait()
    assert ranks.checkpoints.newest() is None
    for writer in ranks.writers:
        writer.count(1, 0)
        writer.wait()
    newest = ranks.checkpoints.newest()
    assert newest is not None
    assert names(tmp_path) == ["step-12"]
    assert names(newest.path) == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json", "state.json"]
    assert not any(writer.busy for writer in ranks.writers)


def test_a_share_that_cannot_be_written_is_told_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.save(12)
    write_rows = dcp_rows.write_rows

    def fail(folder: Path, tensors: Any, part: Any, *rest: Any) -> Any:
        if part.rank == 1:
            raise OSError(28, os.strerror(28))
        return write_rows(folder, tensors, part, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(dcp_rows, "write_rows", fail)
        ranks.save(13)
    (warning,) = ranks.warnings
    assert warning.startswith(f"checkpoints cannot be written to {tmp_path}: No space left on device")
    newest = ranks.checkpoints.newest()
    assert newest is not None
    assert newest.step == 12
    assert not ranks.writers[0].due
    ranks.save(14)
    assert names(tmp_path) == ["step-12", "step-14"]


def test_a_share_that_was_cut_short_behind_its_writers_back_makes_no_checkpoint(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.start(12)
    (folder,) = tmp_path.iterdir()
    os.truncate(folder / "__1_0.distcp", 10)
    ranks.agree()
    assert names(tmp_path) == []
    assert "__1_0.distcp is not as long as it was written" in ranks.warnings[0]


def test_an_unfinished_checkpoint_of_a_generation_that_ended_is_begun_again_soon(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.start(12)
    for writer in ranks.writers:
        assert not writer.due
        writer.conclude(publish=False, retry=True)
        assert writer.due
    ranks.save(15)
    assert names(tmp_path) == ["step-15"]


def test_every_rank_looks_into_its_share_of_the_files(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 3)
    ranks.save(12)
    share = tmp_path / "step-12" / "__2_0.distcp"
    share.write_bytes(share.read_bytes()[:-1] + b"?")
    faults = []
    for rank, writer in enumerate(ranks.writers):
        told = Told("step-12")
        found = list(writer.stored(place(rank, 3), told))
        assert bool(found) == (told.heard[-1] is None)
        faults.append(told.heard[-1])
    assert [fault for fault in faults if fault] == [f"{share} does not have the content it was written with"]
