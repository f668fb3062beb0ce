"""Disks that are full, and checkpoints that are not what was written: training goes on and says so."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ClientError
from running_service import RunningService, formed_messages, small_spec, wait_for_steps
from waiting import wait_until
from warm_processes import run_warm


@pytest.fixture
def disks(service: RunningService) -> Iterator[tuple[Path, Path]]:
    """A file system for all of the service's data, and one for its checkpoints that is too small for one."""
    data, checkpoints = service.data_dir, service.data_dir / "checkpoints"
    for folder, size in ((data, "64m"), (checkpoints, "16k")):
        folder.mkdir(parents=True)
        if shutil.which("mount") is None or mount(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs").returncode:
            pytest.skip("needs to mount a file system")
    yield data, checkpoints
    service.end()
    for folder in (checkpoints, data):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)


def warnings(client: OakumClient) -> list[str]:
    return [event.message for event in client.recent_events(500).events if event.kind == "trainer.warning"]


def test_disks_that_are_full_or_flip_bits_stop_no_training_and_are_told_of(
    service: RunningService, disks: tuple[Path, Path]
) -> None:
    data, checkpoints = disks
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000, checkpoint={"every_s": 0.5, "keep": 2}, max_nodes=1))
    a_full_disk_is_the_trainers_condition_until_a_checkpoint_fits_again(client, checkpoints)
    wait_until("two checkpoints", lambda: len(written(service)) >= 2)
    a_checkpoint_with_a_flipped_bit_is_passed_over_and_named(service)
    a_full_data_folder_is_said_by_everything_one_asks_while_training_goes_on(service, data)


def a_full_disk_is_the_trainers_condition_until_a_checkpoint_fits_again(
    client: OakumClient, small_disk: Path
) -> None:
    def condition() -> str:
        return client.trainer("elastic").message

    wait_until("it says so", lambda: "No space left on device" in condition())
    wait_for_steps(client, "elastic")
    assert "No space left on device" in condition()
    assert mount(small_disk, "-o", "remount,size=64m").returncode == 0
    wait_until("a checkpoint is written", lambda: list(small_disk.glob("*/step-*/manifest.json")))
    wait_until("all is well again", lambda: not condition())


def a_checkpoint_with_a_flipped_bit_is_passed_over_and_named(service: RunningService) -> None:
    service.interrupt()
    before, newest = written(service)[-2:]
    data = next(newest.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)

    client = service.start()
    wait_until("it resumes", lambda: formed_messages(client)[-1:] and "resumes" in formed_messages(client)[-1])
    assert f"at step {step_of(before):,} " in formed_messages(client)[-1]
    found = [warning for warning in warnings(client) if f"checkpoint of step {step_of(newest)}" in warning]
    assert len(found) == 1
    assert data.name in found[0]


def written(service: RunningService) -> list[Path]:
    """The complete checkpoints, the oldest first; not what an interrupted writer has left, manifest or not."""
    folders = (file.parent for file in service.data_dir.glob("checkpoints/*/step-*/manifest.json"))
    return sorted((folder for folder in folders if re.fullmatch(r"step-\d+", folder.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step at which the checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def a_full_data_folder_is_said_by_everything_one_asks_while_training_goes_on(
    service: RunningService, data_disk: Path
) -> None:
    client = service.client()
    health = f"{json.loads((data_disk / 'client.json').read_text(encoding='utf-8'))['url']}/healthz"
    wait_for_steps(client, "elastic")
    formed = len(formed_messages(client))
    (rank,) = service.ranks().values()
    fill(data_disk / "filler")
    names = (f"waiting-{number}" for number in itertools.count())

    def is_said() -> bool:
        """After so much that is to be written that what the database had reserved is used up."""
        too_large = {"min_nodes": 64, "max_nodes": 64, "rehearsal": False, "arguments": {"text": "x" * 100_000}}
        with contextlib.suppress(ClientError):
            client.submit(small_spec(next(names), **too_large))
        return client.trainers().fault is not None

    wait_until("it is said", is_said)
    environment = os.environ | {"OAKUM_DATA_DIR": str(data_disk), "COLUMNS": "1000"}
    shown = run_warm("oakum", "ps", environment=environment).stdout
    assert "cannot write to its database" in shown
    assert "the disk is full" in shown
    assert "elastic" in shown
    assert httpx.get(health).json()["status"] == "cannot write"
    with pytest.raises(ClientError, match="cannot write to its database"):
        client.submit(small_spec("another"))
    assert service.log_file.read_text(encoding="utf-8").count("cannot write to its database") == 1
    before = rank.cpu_times().user
    wait_until("its rank computes on", lambda: rank.cpu_times().user > before)
    (data_disk / "filler").unlink()
    wait_until("it is well again", lambda: client.trainers().fault is None)
    wait_for_steps(client, "elastic")
    assert len(formed_messages(client)) == formed
    assert httpx.get(health).json() == {"status": "ok"}


def fill(file: Path) -> None:
    """Write a file until the file system is full."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as stream:
        while stream.write(b"0" * 4096):
            pass
