"""The test cluster's files and refusals, without a cluster."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from cells import each
from slurm_cluster import configuration, daemons, ports
from slurm_cluster.cluster import Cluster
from slurm_cluster.errors import ClusterError
from slurm_cluster.folder import Folder, Record
from slurm_cluster.options import ClusterOptions
from slurm_cluster.ports import reserved_ports


def record(**options: object) -> Record:
    made = ClusterOptions(**options)  # type: ignore[arg-type]
    return Record("oakum-1", 1001, 1002, 1003, tuple(range(2001, 2001 + made.nodes)), made)


def lines(**options: object) -> list[str]:
    """Of slurm.conf."""
    return configuration.slurm_conf(Folder(Path("/tmp/cluster")), record(**options)).splitlines()


def test_preemption_by_partition_leaves_the_foreground_alone() -> None:
    written = lines(nodes=2, grace_s=7)
    assert "PreemptType=preempt/partition_prio" in written
    main, fill = written[-2:]
    assert main.startswith("PartitionName=main Nodes=n[001-002]")
    assert main.endswith("PriorityTier=100 PreemptMode=OFF")
    assert fill.endswith("PriorityTier=1 PreemptMode=CANCEL GraceTime=7")


def test_preemption_by_qos_has_its_grace_in_the_qos() -> None:
    assert "GraceTime" not in "\n".join(lines(preemption="qos"))
    assert "add qos fill Priority=1 PreemptMode=Cancel GraceTime=30" in configuration.accounting(
        ClusterOptions(preemption="qos")
    )


def test_further_lines_and_options_are_written() -> None:
    written = lines(nodes=1, lines=("Prolog=/p",), fill_options="MaxTime=5", node_options="Feature=a100")
    assert "Prolog=/p" in written
    assert written[-1].endswith(" MaxTime=5")
    assert written[-3].endswith("State=UNKNOWN Feature=a100")


def test_every_path_of_the_configuration_is_in_the_folder() -> None:
    paths = [word for line in lines() for word in line.split("=") if word.startswith("/")]
    assert paths
    assert [path for path in paths if not path.startswith("/tmp/cluster/")] == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder, written = Folder(tmp_path), record(nodes=3, lines=("Prolog=/p",))
    assert folder.record() is None
    folder.write_record(written)
    assert folder.record() == written


def test_a_lock_waits_for_a_folder_that_another_process_has_just_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, opened = Folder(tmp_path / "cluster"), []
    real_open = os.open

    def removed_once(path: Path, flags: int) -> int:
        if not opened:
            Path(path).rmdir()
        opened.append(path)
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", removed_once)
    with folder.locked():
        assert folder.path.is_dir()
    assert len(opened) == 2


def test_a_port_is_reserved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_ports(20) as reserved:
        assert len(set(reserved)) == 20
        monkeypatch.setattr(ports, "_RANGE", range(reserved[0], reserved[0] + 1))
        with pytest.raises(ClusterError, match="fewer than 1 TCP ports are free"), reserved_ports(1):
            pass


def test_a_daemon_listens_on_the_port_reserved_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as daemon:
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with reserved_ports(1) as [port]:
            daemon.bind(("0.0.0.0", port))
            daemon.listen()
        assert daemons.answers(("127.0.0.1", port))
        monkeypatch.setattr(ports, "_RANGE", range(port, port + 1))
        with pytest.raises(ClusterError), reserved_ports(1):
            pass


def test_whoever_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        Cluster(tmp_path / "cluster").up(ClusterOptions())


def test_what_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "slurmrestd" else f"/{name}")
    with pytest.raises(ClusterError, match="not installed: slurmrestd; `apt-get install slurmrestd`"):
        daemons.check_machine()


def test_a_container_that_may_make_no_namespaces_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/bin/false")
    with pytest.raises(ClusterError, match="CAP_SYS_ADMIN"):
        daemons.check_machine()


def test_a_folder_that_other_users_cannot_reach_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ClusterError, match=r"closed to other users.*chmod o\+x"):
        Folder(closed / "cluster").check()


def test_a_path_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(ClusterError, match="too long"):
        Folder(Path("/tmp") / ("x" * 100)).check()


@each("options", [{"nodes": 0}, {"nodes": 65}, {"grace_s": -1}, {"kill_wait_s": 0}])
def test_what_no_cluster_can_be_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ClusterError):
        ClusterOptions(**options)  # type: ignore[arg-type]
