"""Samples that other processes read ahead of the steps: the same ones, with the same draws, each once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oakum
from oakum_worker.errors import TaskError
from oakum_worker.step.sample_packs import pack, unpack
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from oakum_worker.trying.trial import try_out
from training_ranks import (
    NUM_SAMPLES,
    Points,
    ShakenPoints,
    build_loop,
    build_spec,
    build_task,
    digest,
    mean_squared_error,
    step_together,
)
from waiting import wait_until

_FORK = multiprocessing.get_context("fork")


class CountedPoints(ShakenPoints):
    """Counts in shared memory how often each sample was read, in whichever process."""

    def __init__(self, fault_at: int | None = None) -> None:
        super().__init__()
        self.counts = _FORK.RawArray("L", NUM_SAMPLES)
        self.fault_at = fault_at

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.counts[index] += 1
        if index == self.fault_at:
            raise OSError(f"cannot decode image {index}.jpg")
        return super().__getitem__(index)


class Stream:
    """The points in the order of their numbers, with a draw for each."""

    def __init__(self) -> None:
        self.points = Points()

    def __len__(self) -> int:
        return NUM_SAMPLES

    def samples(self, epoch: int, start: int) -> Iterator[Any]:
        for index in range(start, NUM_SAMPLES):
            inputs, targets = self.points[index]
            yield inputs + torch.rand(()), targets


class Many(ShakenPoints):
    """Reads several samples at once when asked to."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


def by_name(samples: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([s["inputs"] for s in samples]), torch.stack([s["targets"] for s in samples])


class Named(ShakenPoints):
    def __getitem__(self, index: int) -> Any:
        inputs, targets = super().__getitem__(index)
        return {"number": index, "inputs": inputs, "targets": targets}


def losses(dataset: Any, workers: int, collate: Callable[..., Any] | None = None) -> tuple[list[float], str]:
    """The losses of three epochs whose batches grow, and a hash of the last state."""
    task = build_task(dataset=dataset)
    task.collate = collate or task.collate
    sizes = ((1, 16), (2, 20))
    loop = TrainingLoop(task, build_spec(workers=workers, epochs=3, micro_batch=3, batch_schedule=sizes))
    found = []
    while not loop.finished:
        found.append(loop.step().loss)
    return found, digest(loop)


@pytest.fixture(autouse=True)
def _ended_readers() -> Iterator[None]:
    """End the readers of a test's loops, which wait for the garbage collector."""
    yield
    gc.collect()


def readers() -> list[psutil.Process]:
    """The processes that read for this one."""
    return [psutil.Process(child.pid) for child in multiprocessing.active_children()]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("make", "collate"),
    [(ShakenPoints, None), (Many, None), (Named, by_name)],
    ids=["samples", "many", "collated"],
)
def test_losses_do_not_depend_on_who_reads(make: Any, collate: Any, workers: int) -> None:
    assert losses(make(), workers, collate) == losses(make(), 0, collate)


def test_a_stream_is_read_ahead_by_one_process() -> None:
    assert losses(Stream(), 1) == losses(Stream(), 0)
    with pytest.raises(TaskError, match=r"is a stream, .* workers is 2: set workers to 1"):
        losses(Stream(), 2)


def test_each_sample_is_read_once_an_epoch_and_no_process_is_left() -> None:
    """Also over the ends of epochs, whose last batch is smaller, and at the end of training."""
    points = CountedPoints()
    loop = build_loop(dataset=points, workers=2, epochs=4, global_batch=10, micro_batch=3)
    while not loop.finished:
        loop.step()
    # Each of the two processes reads its first micro-batch twice: only then it sees that draws are made.
    assert sum(points.counts) <= 4 * NUM_SAMPLES + 2 * 3
    assert min(points.counts) == 4
    children = readers()
    assert len(children) == 2
    del loop
    gc.collect()
    wait_until("the readers have ended", lambda: not any(_runs(child) for child in children))


@pytest.mark.parametrize("together", [True, False])
def test_nodes_come_and_go_with_the_losses_of_one_process(together: bool) -> None:
    """After a change a rank's share of a batch is another one than that which its processes have begun to read."""

    def build(workers: int) -> TrainingLoop:
        norm = [torch.nn.BatchNorm1d(8).double()] if together else []
        options = {"batch_norm": "synchronised"} if together else {}
        return build_loop(*norm, dataset=ShakenPoints(), workers=workers, parallel=options)

    loops = [build(workers=2) for _ in range(3)]
    for loop in loops:
        loop.start_readers()
    found: list[float] = []
    for members in (loops, loops[:1], loops[:2], loops):
        found += step_together(members, 2, share_from=0)
    alone = build(workers=0)
    assert found == pytest.approx([alone.step().loss for _ in found], rel=1e-12)


def test_an_error_comes_at_the_step_that_needs_the_sample_and_says_where_it_was_raised() -> None:
    order = []
    loop = build_loop(dataset=(points := Points()), epochs=1, micro_batch=3)
    for _ in range(3):
        loop.step()
    order = points.read[-8:]
    loop = build_loop(dataset=CountedPoints(fault_at=order[4]), workers=3, epochs=1, micro_batch=3)
    loop.step()
    loop.step()
    for _ in range(2):  # and again, where the step is tried again
        with pytest.raises(OSError, match=rf"cannot decode image {order[4]}\.jpg") as caught:
            loop.step()
        assert "read_ahead_cases.py" in caught.value.__notes__[0]
    assert loop.step_count == 2


def test_a_reader_that_is_killed_ends_the_step_with_an_error() -> None:
    loop = build_loop(dataset=ShakenPoints(), workers=1, epochs=10_000)
    loop.step()
    [reader] = readers()
    reader.kill()
    # What was read before is still there.
    with pytest.raises(TaskError, match=r"a process that reads samples has ended: .* lower workers \(1\)"):
        deque(iter(loop.step, None), maxlen=0)


def test_readers_end_with_the_process_that_they_read_for_and_not_on_a_signal_to_the_whole_job() -> None:
    ours, theirs = _FORK.Pipe()

    def parent() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        loop = build_loop(dataset=ShakenPoints(), workers=2, epochs=10_000)
        loop.step()
        theirs.send([reader.pid for reader in readers()])
        theirs.recv()
        while loop.step_count < 50:
            loop.step()
        theirs.send(loop.step_count)
        signal.pause()

    process = _FORK.Process(target=parent)
    process.start()
    orphans = [psutil.Process(pid) for pid in ours.recv()]
    assert len(orphans) == 2
    for reader in orphans:
        os.kill(reader.pid, signal.SIGTERM)  # as Slurm sends it; the rank decides when to leave
    ours.send("go on")
    assert ours.recv() == 50
    process.kill()
    process.join()
    wait_until("the readers have ended", lambda: not any(_runs(reader) for reader in orphans))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_readers_can_be_forked_while_a_thread_waits_for_a_line_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rank's thread waits for commands. Python closes a child's `sys.stdin`, for which it needs its lock."""
    read, write = os.pipe()
    with os.fdopen(read) as stdin, os.fdopen(write, "w") as commands:
        monkeypatch.setattr("sys.stdin", stdin)
        thread = threading.Thread(target=stdin.readline)
        thread.start()
        loop = build_loop(dataset=ShakenPoints(), workers=1)
        loop.start_readers()
        assert loop.step().step == 1
        commands.write("leave\n")
        commands.flush()
        thread.join()


def test_a_reader_destroys_nothing_of_the_process_that_it_was_forked_from() -> None:
    """A process group's destructor waits for threads, which a forked process has not."""
    destroyed, parent = _FORK.RawArray("L", 1), os.getpid()

    class Trap:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            destroyed[0] += os.getpid() != parent

    class Collecting(ShakenPoints):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            gc.collect()
            return super().__getitem__(index)

    gc.disable()
    try:
        Trap()
        build_loop(dataset=Collecting(), workers=1).step()
    finally:
        gc.enable()
    assert destroyed[0] == 0


def test_a_session_reads_ahead_too() -> None:
    def losses_of_a_session(**options: Any) -> list[float]:
        task, found = build_task(), []
        with oakum.session(task.model, task.optimizer, ShakenPoints(), batch_size=8, **options) as session:
            for batch in session:
                session.backward(mean_squared_error(task.model, batch))
                session.step()
                found.append(session.loss)
        return found

    assert losses_of_a_session(workers=2) == losses_of_a_session()
    assert len(readers()) >= 2


_leaves = st.one_of(
    st.integers(),
    st.text(),
    st.none(),
    st.just(()),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3).map(torch.tensor),
)
_samples = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=5,
)


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


@given(st.lists(_samples, min_size=1, max_size=4))
def test_unpacked_samples_are_what_was_packed(samples: list[Any]) -> None:
    assert _equal(unpack(pack(samples)), samples)
    assert _equal(unpack(pack(samples * 2)), samples * 2)


def test_samples_of_one_form_are_packed_into_one_tensor_for_each_field() -> None:
    packed = pack([{"image": torch.ones(2, 3), "label": torch.tensor(n)} for n in range(5)])
    assert [tuple(column.values.shape) for column in packed.columns] == [(5, 2, 3), (5,)]  # type: ignore[union-attr]


READING = "reading more samples in reader processes"


class OpenedOnce(CountedPoints):
    """Reads from a connection, which belongs to the process that has opened it."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_by = os.getpid()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if os.getpid() != self.opened_by:
            raise ConnectionError("bad message from the server")
        return super().__getitem__(index)


def tried(dataset: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events of a try of a spec with so many workers."""

    def entrypoint() -> Task:
        return build_task(dataset=dataset)

    monkeypatch.setitem(globals(), "entrypoint", entrypoint)
    events: list[dict[str, Any]] = []
    try_out(build_spec(workers=workers, entrypoint=f"{__name__}:entrypoint"), events.append)
    return events


def test_a_try_reads_with_as_many_processes_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events = tried(CountedPoints(), 2, monkeypatch)
    details = {event["check"]: event["detail"] for event in events if event["state"] == "done"}
    assert details["starting reader processes"] == "2"
    assert details[READING] == f"{NUM_SAMPLES} of {NUM_SAMPLES} read"
    wait_until("the readers have ended", lambda: not multiprocessing.active_children())


@pytest.mark.parametrize(
    ("dataset", "check", "said"),
    [
        (
            OpenedOnce(),
            READING,
            "raised ConnectionError: bad message from the server in a process that reads samples (workers: 2), "
            "and nothing in the process that built the task: have the data set open connections, files and GPUs "
            "in __getitem__, anew in each process, or leave workers out",
        ),
        (
            CountedPoints(fault_at=40),
            READING,
            f"reading sample 40 of the data set (CountedPoints, {NUM_SAMPLES} samples) raised OSError: cannot",
        ),
        (Stream(), "building the task", "is a stream, which is read in its own order, and workers is 2"),
    ],
    ids=["opened once", "fault", "stream"],
)
def test_a_try_tells_what_readers_cannot_read(
    dataset: Any, check: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = tried(dataset, 2, monkeypatch)[-1]
    assert (last["state"], last["check"]) == ("failed", check)
    assert said in last["message"]
    wait_until("the readers have ended", lambda: not multiprocessing.active_children())


def test_a_try_of_a_stream_reads_it_in_order_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    (detail,) = [
        event["detail"]
        for event in tried(Stream(), 1, monkeypatch)
        if (event.get("check"), event["state"]) == (READING, "done")
    ]
    assert detail == f"{NUM_SAMPLES} of {NUM_SAMPLES} read"
