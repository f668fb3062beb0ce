"""The options of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slurm_cluster.errors import ClusterError

Preemption = Literal["partition", "qos", "none"]


@dataclass(frozen=True)
class ClusterOptions:
    """Options of one cluster. Two partitions share all nodes: `main` for foreground jobs, `fill` for Oakum's."""

    nodes: int = 8
    cpus: int = 2
    """CPUs of each node, whatever the machine has."""
    memory_mb: int = 64_000
    """Memory of each node; nothing enforces it."""
    gpus: int = 0
    """GPUs of each node, which jobs share: Slurm counts them, and there are none."""
    preemption: Preemption = "partition"
    """How foreground jobs take nodes: by their partition's priority tier, by the QOS `fill`, or not at all."""
    grace_s: int = 30
    """Seconds from SIGTERM to SIGKILL when a job of `fill` is preempted; 0 (GraceTime unset) sends SIGKILL at
    once. slurmctld looks only every 30 s for jobs whose grace has ended."""
    kill_wait_s: int = 5
    """Seconds from SIGTERM to SIGKILL when a job is cancelled or exceeds its time limit."""
    min_job_age_s: int = 300
    """Seconds for which slurmctld remembers an ended job."""
    schedule_every_s: int = 2
    """Seconds between two runs of the main scheduler and of backfill."""
    enforce_limits: bool = False
    """Whether associations and limits of the QOS are enforced; otherwise they are only recorded."""
    lines: tuple[str, ...] = ()
    """Additional lines of slurm.conf, such as hooks (`Prolog=/...`); they override the options above."""
    main_options: str = ""
    """Additional options of the partition `main`, such as `MaxTime=60`. The last value of a name counts."""
    fill_options: str = ""
    node_options: str = ""
    """Additional options of every node, such as `Feature=a100,nvlink`."""
    users: tuple[str, ...] = field(default=("root", "nobody"))
    """Accounts that get an association with both QOS, so that they may submit if limits are enforced."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise ClusterError(f"{self.nodes} nodes: one machine takes 1 to 64")
        if self.grace_s < 0 or self.kill_wait_s < 1:
            raise ClusterError("the grace is 0 s or longer, the kill wait 1 s or longer")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes, in order."""
        return tuple(f"n{number:03}" for number in range(1, self.nodes + 1))

    @property
    def node_list(self) -> str:
        """The nodes' names as one of Slurm's host lists, such as `n[1-8]`."""
        return f"n[001-{self.nodes:03}]" if self.nodes > 1 else "n001"
