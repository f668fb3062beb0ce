"""Writes the configuration files of Slurm's daemons."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from slurm_cluster.folder import Folder, Record
from slurm_cluster.options import ClusterOptions

CLUSTER_NAME = "oakum"
SLURM_USER = "slurm"
_PREEMPTION = {
    "partition": ("PreemptType=preempt/partition_prio", "PreemptMode=CANCEL"),
    "qos": ("PreemptType=preempt/qos", "PreemptMode=CANCEL"),
    "none": ("PreemptType=preempt/none", "PreemptMode=OFF"),
}
_GPU_TYPE = "a100"
_FIRST_DEVICE = 10
_GPU_LINES = (
    "GresTypes=gpu",
    "AccountingStorageTRES=gres/gpu",
    "SelectTypeParameters=CR_CPU_Memory",
    "DefMemPerCPU=1000",
)
"""Jobs that share a node need a share of its memory."""


def write(folder: Folder, record: Record) -> None:
    """Make the folders and every file that a daemon needs before its first start."""
    for path in (folder.slurm_conf.parent, folder.munge_key.parent, folder.database_socket.parent, folder.logs):
        path.mkdir(mode=0o755)
    for path in (folder.state, folder.spool):
        path.mkdir(mode=0o755)
    shutil.chown(folder.state, SLURM_USER)
    shutil.chown(folder.logs, SLURM_USER)
    # slurmrestd creates its socket here after it has changed its user; sticky, so that no user replaces files of
    # others.
    folder.rest_socket.parent.chmod(0o1777)
    _write_secret(folder.munge_key, secrets.token_bytes(1024), owner=None)
    _write_secret(folder.jwt_key, secrets.token_bytes(32), owner=SLURM_USER)
    _write_secret(folder.slurmdbd_conf, slurmdbd_conf(folder, record).encode(), owner=SLURM_USER)
    folder.slurm_conf.write_text(slurm_conf(folder, record), encoding="utf-8")
    if record.options.gpus:
        folder.slurm_conf.with_name("gres.conf").write_text(gres_conf(record.options), encoding="utf-8")
    folder.hosts(record.mark).write_text(hosts(record), encoding="utf-8")


def _write_secret(path: Path, content: bytes, owner: str | None) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    if owner is not None:
        shutil.chown(path, owner)


def hosts(record: Record) -> str:
    """Text of the hosts file: this machine's own names and those of the nodes."""
    names = " ".join(record.options.node_names)
    return f"{Path('/etc/hosts').read_text(encoding='utf-8').rstrip()}\n127.0.0.1 {names}\n"


def slurm_conf(folder: Folder, record: Record) -> str:
    """The cluster's `slurm.conf`."""
    options = record.options
    lines = [
        f"ClusterName={CLUSTER_NAME}",
        f"SlurmctldHost={os.uname().nodename}(127.0.0.1)",
        f"SlurmctldPort={record.slurmctld_port}",
        f"SlurmUser={SLURM_USER}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder.munge_socket}",
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={folder.jwt_key}",
        "CredType=cred/munge",
        f"StateSaveLocation={folder.state}",
        f"SlurmdSpoolDir={folder.spool}/%n",
        f"SlurmctldPidFile={folder.state}/slurmctld.pid",
        f"SlurmdPidFile={folder.spool}/%n.pid",
        f"SlurmctldLogFile={folder.logs}/slurmctld.log",
        f"SlurmdLogFile={folder.logs}/%n.log",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        # slurmd takes the node's CPUs and memory from here instead of from the machine.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters=bf_interval={options.schedule_every_s},sched_interval={options.schedule_every_s}",
        *_PREEMPTION[options.preemption],
        f"KillWait={options.kill_wait_s}",
        f"MinJobAge={options.min_job_age_s}",
        "SlurmctldTimeout=120",
        "SlurmdTimeout=120",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        # For slurmdbd, this setting names munge's socket, not AuthInfo.
        f"AccountingStoragePass={folder.munge_socket}",
        f"AccountingStoragePort={record.slurmdbd_port}",
        *(["AccountingStorageEnforce=associations,limits,qos"] if options.enforce_limits else []),
        "JobAcctGatherType=jobacct_gather/linux",
        *(_GPU_LINES if options.gpus else []),
        *options.lines,
        *_node_lines(record),
        *_partition_lines(options),
    ]
    return "\n".join(lines) + "\n"


def _node_lines(record: Record) -> list[str]:
    options = record.options
    gpus = f"Gres=gpu:{_GPU_TYPE}:{options.gpus} " if options.gpus else ""
    size = (
        f"CPUs={options.cpus} RealMemory={options.memory_mb} {gpus}State=UNKNOWN {options.node_options}".rstrip()
    )
    return [
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} {size}"
        for name, port in zip(options.node_names, record.node_ports, strict=True)
    ]


def gres_conf(options: ClusterOptions) -> str:
    """The cluster's `gres.conf`: terminals, which nothing opens, stand for GPUs."""
    devices = f"File=/dev/tty[{_FIRST_DEVICE}-{_FIRST_DEVICE + options.gpus - 1}]"
    return f"NodeName={options.node_list} Name=gpu Type={_GPU_TYPE} {devices}\n"


def _partition_lines(options: ClusterOptions) -> list[str]:
    nodes = f"Nodes={options.node_list} State=UP"
    main = f"PartitionName=main {nodes} Default=YES MaxTime=INFINITE DefaultTime=60 PriorityTier=100"
    fill = f"PartitionName=fill {nodes} MaxTime=INFINITE DefaultTime=60 PriorityTier=1"
    if options.preemption == "partition":
        main += " PreemptMode=OFF"
        fill += f" PreemptMode=CANCEL GraceTime={options.grace_s}"
    return [f"{main} {options.main_options}".rstrip(), f"{fill} {options.fill_options}".rstrip()]


def slurmdbd_conf(folder: Folder, record: Record) -> str:
    """The cluster's `slurmdbd.conf`. MariaDB knows slurmdbd by its Unix account: there is no password."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder.munge_socket}",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={record.slurmdbd_port}",
        f"SlurmUser={SLURM_USER}",
        f"LogFile={folder.logs}/slurmdbd.log",
        f"PidFile={folder.state}/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        f"StorageUser={SLURM_USER}",
        "StorageLoc=slurm_accounting",
    ]
    return "\n".join(lines) + "\n"


def accounting(options: ClusterOptions) -> str:
    """Commands for `sacctmgr`, one on each line."""
    fill = preempts = ""
    if options.preemption == "qos":
        fill, preempts = f"PreemptMode=Cancel GraceTime={options.grace_s}", "Preempt=fill"
    lines = [
        f"add cluster {CLUSTER_NAME}",
        f"add qos fill Priority=1 {fill}",
        f"modify qos normal set Priority=1000 {preempts}",
        "add account oakum Description=oakum Organization=oakum",
        f"add user {','.join(options.users)} Account=oakum DefaultAccount=oakum QOS=normal,fill DefaultQOS=normal",
    ]
    return "\n".join(lines) + "\n"
