"""The copy of a state that outlives its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.errors import CheckpointError

STATE = {
    "model": {"w": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).t(), "empty": torch.empty(0, 3)},
    "flags": torch.tensor([True, False, True]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "cursor": {"step": 4, "rates": (0.1, 0.2)},
}


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("test")
    yield made
    os.close(made)


def assert_same(found: object, expected: object) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    else:
        assert found == expected


def in_child(descriptor: int, state: object) -> None:
    """Have another process store a state and be killed, by then or in the middle of it."""
    child = os.fork()
    if child == 0:
        try:
            HostMemory(descriptor).store(state, 4)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_another_process_finds_what_a_killed_one_has_stored(descriptor: int) -> None:
    in_child(descriptor, STATE)
    found = HostMemory(descriptor).load()
    assert found is not None
    assert found[1] == 4
    assert_same(found[0], STATE)


def test_a_copy_that_was_not_finished_is_none(descriptor: int) -> None:
    HostMemory(descriptor).store(STATE, 3)
    in_child(descriptor, STATE | {"unreadable": torch.empty(3, device="meta")})
    assert HostMemory(descriptor).load() is None


def test_nothing_stored_is_nothing_found(descriptor: int) -> None:
    assert HostMemory(descriptor).load() is None


def test_a_newer_copy_replaces_a_larger_and_a_smaller_one(descriptor: int) -> None:
    memory = HostMemory(descriptor)
    for size in (10, 100_000, 3):
        memory.store({"w": torch.full((size,), float(size))}, size)
        found = memory.load()
        assert found is not None
        assert found[1] == size
        assert torch.equal(found[0]["w"], torch.full((size,), float(size)))


def test_what_is_found_does_not_change_with_the_next_copy(descriptor: int) -> None:
    memory = HostMemory(descriptor)
    memory.store({"w": torch.ones(3)}, 1)
    found = memory.load()
    memory.store({"w": torch.zeros(3)}, 2)
    assert found is not None
    assert torch.equal(found[0]["w"], torch.ones(3))


def test_released_memory_is_given_back(descriptor: int) -> None:
    memory = HostMemory(descriptor)
    memory.store({"w": torch.ones(100_000)}, 1)
    assert os.fstat(descriptor).st_blocks > 0
    memory.release()
    assert os.fstat(descriptor).st_blocks == 0
    assert memory.load() is None


def test_a_node_without_memory_refuses_and_keeps_nothing(tmp_path: Path) -> None:
    with open("/dev/full", "r+b") as full, pytest.raises(CheckpointError, match="no copy of the state"):  # noqa: PTH123
        HostMemory(full.fileno()).store(STATE, 1)
