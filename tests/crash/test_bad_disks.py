"""Disks that are full, and checkpoints that are not what was written: training goes on and says so."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_service.client import OakumClient
from running_service import RunningService, formed_messages, small_spec, wait_for_steps
from waiting import wait_until

pytestmark = pytest.mark.xdist_group("disks")


@pytest.fixture
def small_disk(service: RunningService) -> Iterator[Path]:
    """A file system of its own for checkpoints, too small for one."""
    folder = service.data_dir / "checkpoints"
    folder.mkdir(parents=True)
    if shutil.which("mount") is None or mount(folder, "-t", "tmpfs", "-o", "size=16k", "tmpfs").returncode:
        pytest.skip("needs to mount a file system")
    yield folder
    service.end()
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)


def warnings(client: OakumClient) -> list[str]:
    return [event.message for event in client.recent_events(500).events if event.kind == "trainer.warning"]


def test_a_full_disk_is_the_trainers_condition_until_a_checkpoint_fits_again(
    service: RunningService, small_disk: Path
) -> None:
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000, checkpoint={"every_s": 0.3}, max_nodes=1))

    def condition() -> str:
        return client.trainer("elastic").message

    wait_until("it says so", lambda: "No space left on device" in condition())
    wait_for_steps(client, "elastic")
    assert "No space left on device" in condition()
    assert mount(small_disk, "-o", "remount,size=64m").returncode == 0
    wait_until("a checkpoint is written", lambda: list(small_disk.glob("*/step-*/manifest.json")))
    wait_until("all is well again", lambda: not condition())


def test_a_checkpoint_with_a_flipped_bit_is_passed_over_and_named(service: RunningService) -> None:
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000, checkpoint={"every_s": 0.5, "keep": 2}, max_nodes=1))
    wait_until("two checkpoints", lambda: len(written(service)) >= 2)
    service.interrupt()
    before, newest = written(service)[-2:]
    data = next(newest.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)

    client = service.start()
    wait_until("it resumes", lambda: formed_messages(client)[-1:] and "resumes" in formed_messages(client)[-1])
    assert f"at step {step_of(before)} " in formed_messages(client)[-1]
    found = [warning for warning in warnings(client) if f"checkpoint of step {step_of(newest)}" in warning]
    assert len(found) == 1
    assert data.name in found[0]


def written(service: RunningService) -> list[Path]:
    """The complete checkpoints, the oldest first; not what an interrupted writer has left, manifest or not."""
    folders = (file.parent for file in service.data_dir.glob("checkpoints/*/step-*/manifest.json"))
    return sorted((folder for folder in folders if re.fullmatch(r"step-\d+", folder.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step it was written at."""
    return int(checkpoint.name.removeprefix("step-"))
