"""An agent tells how much of its node is in use, as far as the node tells it, and nobody waits for it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_worker.fragment.gpu_use import GpuReader, gpu_fields
from oakum_worker.fragment.node_use import UseReader
from oakum_worker.fragment.use_watch import UseWatch
from oakum_worker.protocol import FragmentReport, NodeUse, Phase
from waiting import wait_until

SECOND = 100
"""Ticks of the kernel's clock."""
MIB = 1 << 20


class MadeUpNode:
    """A node's /proc with two processors, 1 GiB of memory, and the processes that a test adds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now_s = 1000.0
        self.busy = 0
        monkeypatch.setattr("os.sysconf", lambda name: SECOND)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.write("meminfo", "MemTotal: 1048576 kB\nMemAvailable: 786432 kB\n")
        self.pass_s(0.0, busy=0)

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def pass_s(self, seconds: float, *, busy: int) -> None:
        """Let time pass, of which the processors are busy for so many ticks."""
        self.now_s += seconds
        self.busy += busy
        self.write("stat", f"cpu  {self.busy} 0 0 900 50 0 0 0 0 0\ncpu0 1 0 0 9\ncpu1 1 0 0 9\nintr 5\n")

    def process(self, pid: int, *, computed: int, anonymous_kb: int = 0, begun: str = "") -> None:
        words = f"S 1 1 1 0 0 0 0 0 0 0 {computed} 0 0 0"
        self.write(f"{pid}/stat", f"{pid} (a (b) c) {words}\n")
        self.write(f"{pid}/status", f"Name: x\nVmRSS: 9999 kB\nRssAnon: {anonymous_kb} kB\n")
        self.write(f"{pid}/task/{pid}/children", begun)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpNode:
    return MadeUpNode(tmp_path, monkeypatch)


def test_the_use_is_the_nodes_and_that_of_the_fragments_processes_since_the_time_before(node: MadeUpNode) -> None:
    reader = UseReader(node.folder)
    node.process(10, computed=500, anonymous_kb=1024, begun="11 ")
    node.process(11, computed=100, anonymous_kb=2048)
    assert reader.read([10]) is None
    node.pass_s(10.0, busy=15 * SECOND)
    node.process(10, computed=500 + 5 * SECOND, anonymous_kb=3072, begun="11 12 ")
    node.process(11, computed=100 + 2 * SECOND, anonymous_kb=2048)
    node.process(12, computed=SECOND)  # begun meanwhile
    assert reader.read([10]) == NodeUse(
        cores=2,
        busy_cores=1.5,
        own_cores=0.8,
        memory_bytes=1024 * MIB,
        used_bytes=256 * MIB,
        own_bytes=5 * MIB,
    )


def test_processes_that_end_or_begin_themselves_anew_make_no_use_below_0(node: MadeUpNode) -> None:
    reader = UseReader(node.folder)
    node.process(10, computed=500, begun="10 11 ")
    reader.read([10])
    node.pass_s(10.0, busy=0)
    node.process(10, computed=3)
    use = reader.read([10, 99])
    assert use is not None
    assert (use.own_cores, use.busy_cores) == (0.0, 0.0)


def test_what_the_node_does_not_tell_is_none(tmp_path: Path) -> None:
    reader = UseReader(tmp_path / "no proc")
    reader.read([10])
    assert reader.read([10]) == NodeUse(own_cores=0.0, own_bytes=0)


def test_this_machine_tells_of_this_process() -> None:
    reader = UseReader()
    reader.read([os.getpid()])
    use = reader.read([os.getpid()])
    assert use is not None
    assert use.cores
    assert use.own_bytes
    assert use.memory_bytes
    assert use.own_bytes < use.memory_bytes


@each(
    ("answer", "fields"),
    [
        ("", {}),
        ("No devices were found\n", {}),
        (
            "40, 1024, 4096\n",
            {"gpus": 1, "gpu_use": 0.4, "gpu_used_bytes": 1024 * MIB, "gpu_memory_bytes": 4096 * MIB},
        ),
        (
            "100, 10, 100\n0, 20, 100\n",
            {"gpus": 2, "gpu_use": 0.5, "gpu_used_bytes": 30 * MIB, "gpu_memory_bytes": 200 * MIB},
        ),
        ("[N/A], 10, 100\n", {"gpus": 1, "gpu_used_bytes": 10 * MIB, "gpu_memory_bytes": 100 * MIB}),
        ("7, [N/A], [N/A]\n", {"gpus": 1, "gpu_use": 0.07}),
    ],
    ids=["nothing", "no GPU", "one", "two", "a MIG slice", "shared memory"],
)
def test_what_nvidia_smi_says(answer: str, fields: dict[str, Any]) -> None:
    assert gpu_fields(answer) == fields
    NodeUse(**fields)


def program(folder: Path, text: str) -> str:
    file = folder / "made-up-smi"
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_the_gpus_that_the_scheduler_has_given_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    asked = program(tmp_path, f'echo "$@" > {tmp_path}/asked; echo "50, 1, 2"')
    assert GpuReader(asked).read()["gpu_use"] == 0.5
    assert (tmp_path / "asked").read_text(encoding="utf-8").split()[-1] == "--id=2,3"


@pytest.mark.parametrize(("text", "longest_s"), [("exit 9", 30.0), ("exec sleep 60", 0.3)], ids=["fails", "hangs"])
def test_a_driver_that_is_ill_is_not_asked_for_ever(text: str, longest_s: float, tmp_path: Path) -> None:
    reader = GpuReader(program(tmp_path, f"echo asked >> {tmp_path}/asked\n{text}"), longest_s)
    assert [reader.read() for _ in range(5)] == [{}] * 5
    assert (tmp_path / "asked").read_text(encoding="utf-8").count("asked") <= 3


def test_without_the_program_there_are_no_gpus() -> None:
    assert GpuReader("no-such-program").read() == {}


def test_each_look_is_told_once_and_stopping_does_not_wait_for_the_one_that_is_made() -> None:
    looks, goes_on = threading.Event(), threading.Event()

    def processes() -> list[int]:
        if looks.is_set():
            goes_on.wait(30.0)
        return []

    watch = UseWatch(processes, every_s=0.01)
    watch.start()
    wait_until("a look at the node", watch.take)
    looks.set()
    before_s = time.monotonic()
    watch.stop()
    assert time.monotonic() - before_s < 5.0
    watch.take()
    assert watch.take() is None
    goes_on.set()


@each(
    "use",
    [{"busy_cores": -1.0}, {"cores": 1e9}, {"own_bytes": 2**60}, {"gpu_use": 7.0}, {"gpu_use": "x"}, [1], "much"],
)
def test_numbers_that_cannot_be_are_left_out_and_the_report_is_read(use: object) -> None:
    report = {"phase": "training", "sequence": 1, "pid": 1, "host": "n1", "use": use}
    assert FragmentReport.model_validate(report) == FragmentReport(
        phase=Phase.TRAINING, sequence=1, pid=1, host="n1"
    )
