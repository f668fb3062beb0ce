"""What a rank has died of is said in words, from what the kernel tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oakum_worker.fragment import deaths
from oakum_worker.fragment.deaths import DeathWatch
from oakum_worker.fragment.memory import Cgroup, Kills, MemoryUse, is_in_kernel_log, kills, memory_of, own_cgroup
from oakum_worker.memory_advice import memory_advice
from training_ranks import build_spec

GIB = 1 << 30


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


@pytest.fixture
def unified(tmp_path: Path) -> Cgroup:
    """A cgroup of version 2: a job's group with a limit of 8 GiB, and within it its step's group without a
    limit."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self", cgroup="0::/job_7/step_0\n")
    write(proc, vmstat="nr_free_pages 5\noom_kill 3\n", meminfo="MemTotal: 100 kB\nMemAvailable: 40 kB\n")
    write(cgroups / "job_7", memory__max=f"{8 * GIB}\n", memory__current=f"{8 * GIB - 1}\n")
    write(
        cgroups / "job_7" / "step_0",
        memory__max="max\n",
        memory__current=f"{7 * GIB}\n",
        memory__events="low 0\noom 2\noom_kill 1\n",
    )
    found = own_cgroup(proc, cgroups)
    assert found is not None
    return found


class TestMemory:
    def test_of_a_cgroup_of_version_2_is_that_of_its_tightest_limit(self, unified: Cgroup) -> None:
        assert unified.limit() == (8 * GIB - 1, 8 * GIB)
        assert unified.kills() == 1

    def test_of_a_cgroup_of_version_1(self, tmp_path: Path) -> None:
        proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
        write(proc / "self", cgroup="5:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n0::/\n")
        folder = cgroups / "memory" / "slurm" / "job_7"
        write(folder, memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        write(folder, memory__limit_in_bytes="4096\n", memory__usage_in_bytes="1024\n")
        write(folder.parent, memory__limit_in_bytes=f"{2**63 - 4096}\n", memory__usage_in_bytes="9\n")
        found = own_cgroup(proc, cgroups)
        assert found is not None
        assert (found.limit(), found.kills()) == ((1024, 4096), 2)

    def test_within_a_container_is_at_the_root(self, tmp_path: Path) -> None:
        write(tmp_path / "proc" / "self", cgroup="0::/docker/1234\n")
        write(tmp_path / "cgroup", memory__events="oom_kill 4\n", memory__max="100\n", memory__current="7\n")
        found = own_cgroup(tmp_path / "proc", tmp_path / "cgroup")
        assert found is not None
        assert (found.limit(), found.kills()) == ((7, 100), 4)

    def test_that_nobody_tells_of_is_none(self, tmp_path: Path) -> None:
        assert own_cgroup(tmp_path, tmp_path) is None
        assert kills(None, tmp_path) == Kills()
        assert memory_of(os.getpid(), None, tmp_path) is None
        assert not is_in_kernel_log(1, tmp_path / "kmsg")

    def test_without_a_limit_is_the_nodes(self, tmp_path: Path) -> None:
        write(tmp_path / "9", status="Name: python\nVmHWM: 30 kB\nVmRSS:\t20 kB\n")
        write(tmp_path, meminfo="MemTotal: 100 kB\nMemAvailable: 40 kB\n")
        assert memory_of(9, None, tmp_path) == MemoryUse(20 << 10, 60 << 10, 100 << 10, is_cgroups=False)

    def test_of_this_very_process_is_known(self) -> None:
        use = memory_of(os.getpid(), own_cgroup())
        assert use is not None
        assert use.rank_bytes > 10 << 20
        assert use.limit_bytes is not None

    def test_the_kernels_log_is_searched_for_the_process(self, tmp_path: Path) -> None:
        log = tmp_path / "kmsg"
        log.write_text("3,1,2,-;Out of memory: Killed process 4711 (python) total-vm:1kB\n", encoding="utf-8")
        assert is_in_kernel_log(4711, log)
        assert not is_in_kernel_log(471, log)


def dead(status: int) -> tuple[int, int]:
    """Run a process that ends with `status`, by a signal if it is negative; returns (pid, status)."""
    code = f"import os; os.kill(os.getpid(), {-status})" if status < 0 else f"raise SystemExit({status})"
    process = subprocess.Popen([sys.executable, "-c", code])
    return process.pid, process.wait()


class TestDeaths:
    @pytest.fixture(autouse=True)
    def _nothing_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told = Kills(0, 0)
        self.use: MemoryUse | None = None
        monkeypatch.setattr(deaths, "kills", lambda _: self.told)
        monkeypatch.setattr(deaths, "memory_of", lambda *_: self.use)
        monkeypatch.setattr(deaths, "is_in_kernel_log", lambda _: False)

    def explain(self, status: int) -> tuple[str, bool]:
        watch = DeathWatch(build_spec())
        pid, ended = dead(status)
        watch.look([pid])
        self.told = self.told_later if hasattr(self, "told_later") else self.told
        return watch.explain(pid, ended, "rank 0", " after step 412")

    def test_by_the_kernel_in_its_cgroup_say_what_was_held_and_what_to_change(self) -> None:
        self.use = MemoryUse(int(7.9 * GIB), 8 * GIB, 8 * GIB, is_cgroups=True)
        self.told_later = Kills(1, 1)
        assert self.explain(-signal.SIGKILL) == (
            "rank 0 was killed (SIGKILL) after step 412: the kernel's out-of-memory killer ended 1 process of its "
            "cgroup; it last held 7.9 GiB, and 8.0 GiB of the 8.0 GiB that the cgroup may use were in use. "
            + memory_advice(build_spec()),
            True,
        )

    def test_by_the_kernel_on_a_node_without_cgroups(self) -> None:
        self.told_later = Kills(None, 2)
        told, is_explained = self.explain(-signal.SIGKILL)
        assert told.startswith(
            "rank 0 was killed (SIGKILL) after step 412: the kernel's out-of-memory killer ended 2"
        )
        assert is_explained

    def test_by_somebody_else_say_that_it_was_not_the_kernel(self) -> None:
        self.use = MemoryUse(GIB, 2 * GIB, 60 * GIB, is_cgroups=False)
        assert self.explain(-signal.SIGKILL) == (
            "rank 0 was killed (SIGKILL) after step 412, and the kernel reports no out-of-memory kill; it last "
            "held 1.0 GiB, and 2.0 GiB of the 60.0 GiB that the node has were in use",
            False,
        )

    def test_with_hardly_any_memory_left_say_what_to_change_all_the_same(self) -> None:
        self.use = MemoryUse(GIB, 59 * GIB, 60 * GIB, is_cgroups=False)
        told, is_explained = self.explain(-signal.SIGKILL)
        assert "To need less memory: lower micro_batch (not set" in told
        assert not is_explained

    def test_by_other_signals_and_by_exits_name_them(self) -> None:
        assert self.explain(-signal.SIGSEGV) == ("rank 0 crashed (SIGSEGV) after step 412", False)
        assert self.explain(3) == ("rank 0 ended with status 3 after step 412", False)

    def test_that_the_newest_look_has_counted_already_are_seen(self) -> None:
        """The kernel counts before anyone hears of the end."""
        watch = DeathWatch(build_spec())
        pid, ended = dead(-signal.SIGKILL)
        self.told = Kills(1, 1)
        watch.look([pid])
        assert watch.explain(pid, ended, "rank 0", "")[1]


def test_advice_leaves_out_what_is_done_already() -> None:
    spec = build_spec(micro_batch=1, parallel={"data": "sharded"}, ranks_per_node=2)
    assert memory_advice(spec) == (
        "To need less memory: compute activations again (torch.utils.checkpoint, or recompute of a pipeline), "
        "lower ranks_per_node (now 2), have fewer data workers, or smaller caches"
    )
