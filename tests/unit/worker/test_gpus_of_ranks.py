"""Which of a fragment's GPUs is whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from cells import each
from oakum_worker.devices import use_device
from oakum_worker.errors import TaskError
from oakum_worker.fragment import rank_starter
from oakum_worker.fragment.rank_starter import RankStarter, own_gpu_first

UUIDS = "GPU-8932f937,GPU-d72cc3a5"
SLICES = "MIG-7ab1,MIG-9c02"


@pytest.fixture
def node_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_starter, "_count_gpus", lambda: 4)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that a rank has chosen, on a node that shows it two GPUs."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


@pytest.mark.usefixtures("node_of_four")
@each(
    ("visible", "expected"),
    [
        ("", ["0,1,2,3", "1,2,3,0"]),
        ("2,3", ["2,3", "3,2"]),
        ("3", ["3", "3"]),
        (UUIDS, [UUIDS, "GPU-d72cc3a5,GPU-8932f937"]),
        (SLICES, [SLICES, "MIG-9c02,MIG-7ab1"]),
        ("NoDevFiles", ["NoDevFiles", "NoDevFiles"]),
    ],
)
def test_a_rank_sees_all_gpus_of_its_fragment_and_its_own_is_the_first(visible: str, expected: list[str]) -> None:
    assert [own_gpu_first(visible, local_rank) for local_rank in range(2)] == expected


def test_where_no_gpu_is_counted_a_rank_is_given_the_one_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_starter, "_count_gpus", lambda: 0)
    assert own_gpu_first("", 1) == "1"


def test_ranks_number_gpus_as_the_scheduler_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    environment = RankStarter(tmp_path / "fragment.json", 1, 1)._environment()
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == ("3,1", "PCI_BUS_ID")


def test_torchs_watchdog_of_nccl_ends_no_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a user has set; what only looks after the watchdog is the user's."""
    for name in [name for name in os.environ if name.startswith("TORCH_NCCL_")]:
        monkeypatch.delenv(name)
    starter = RankStarter(tmp_path / "fragment.json", 0, 1)
    expected = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "21600",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    assert expected.items() <= starter._environment().items()
    assert not caplog.messages
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    assert (expected | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}).items() <= starter._environment().items()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("TORCH_NCCL_ASYNC_ERROR_HANDLING=3 is not passed on to ranks")


def test_a_rank_computes_on_the_gpu_of_its_model(chosen: list[torch.device]) -> None:
    use_device(torch.device("cuda", 0), 2)
    use_device(torch.device("cpu"), 8)
    assert chosen == [torch.device("cuda", 0)]


def test_fewer_gpus_than_ranks_are_named(monkeypatch: pytest.MonkeyPatch, chosen: list[torch.device]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    with pytest.raises(TaskError, match=r"3 ranks .* see 2 of them \(CUDA_VISIBLE_DEVICES=1,3\): .* 3 GPUs"):
        use_device(torch.device("cuda", 0), 3)
    assert chosen == []


def test_slices_are_counted_by_their_names(monkeypatch: pytest.MonkeyPatch, chosen: list[torch.device]) -> None:
    """CUDA shows a process the first of them alone."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SLICES)
    use_device(torch.device("cuda", 0), 2)
    with pytest.raises(TaskError, match="see 2 of them"):
        use_device(torch.device("cuda", 0), 3)
