"""The settings of a Slurm cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from oakum_service.config.group import SettingsGroup, variable_of
from oakum_worker.spec_options import SlurmSpec

_OF_GPUS = frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "exclusive"})
"""Options of `sbatch` that say what a job gets of a node's GPUs."""


class SlurmSettings(SettingsGroup):
    """How the service reads a Slurm cluster and how it submits fragments there."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_SLURM_")

    partition: str = ""
    """Partition that fragments are submitted to. Foreground jobs must be able to preempt its jobs, by partition
    or by QOS."""
    qos: str | None = None
    account: str | None = None
    allow_qos: list[str] = Field(default_factory=list)
    """QOS that a trainer's spec may ask for in place of `qos`."""
    allow_accounts: list[str] = Field(default_factory=list)
    """Accounts that a trainer's spec may ask for in place of `account`."""
    allow_constraints: list[str] = Field(default_factory=list)
    """Node features that a trainer's spec may name in a constraint on the nodes that it gets."""
    allow_reservations: list[str] = Field(default_factory=list)
    """Reservations that a trainer's spec may ask for: their nodes are holes for such trainers, and in maintenance
    or reserved for nobody else's sake."""
    preemption: Literal["partition", "qos", "none"] = "partition"
    """How Slurm takes nodes back. With `none`, fragments get short time limits and end before the next
    announced foreground job."""
    state: Literal["cli", "rest", "push"] = "cli"
    """Where the cluster's state comes from: Slurm's commands, slurmrestd, or a collector that posts it (`oakum
    collect`)."""
    format: Literal["auto", "json", "text"] = "auto"
    """Output format that Slurm's commands are asked for. `auto` means JSON from Slurm 23.02 on, where JSON says
    all that is needed, and text before that."""
    rest_url: str = ""
    """Address of slurmrestd: `http://head:6820`, or `unix:/run/slurmrestd/socket`."""
    rest_user: str | None = None
    """User name sent with the JWT; default: the user of this process."""
    jwt_file: Path | None = None
    """File with the JWT for slurmrestd, read again for each call; default: the environment variable SLURM_JWT."""
    parser: str | None = None
    """Data parser to ask for, such as `v0.0.40`; default: the newest one that both Slurm and Oakum know."""
    bin_dir: Path | None = None
    """Folder of Slurm's commands; default: found on PATH."""
    command_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    poll_floor_s: Annotated[float, Field(gt=0)] = 10.0
    """Shortest time in seconds between two readings of the state when no hook reports a change."""
    hook_floor_s: Annotated[float, Field(gt=0)] = 2.0
    """Shortest time in seconds between two readings of the state after a hook has reported a change."""
    push_max_age_s: Annotated[float, Field(gt=0)] = 120.0
    """A pushed state older than this, in seconds, is ignored: nothing is planned or submitted on it."""
    slow_cycle_s: Annotated[float, Field(gt=0)] = 5.0
    """When a scheduling cycle of Slurm takes longer than this, in seconds, the state is read less often."""
    slots: Literal["node", "gpu"] = "node"
    """What a fragment gets: a node as a whole, or a GPU with its share of the node's cores and memory, where jobs
    share nodes. A node without GPUs is given as a whole in any case."""
    type_features: list[str] = Field(default_factory=list)
    """Node features that define a node type, in addition to the nodes' GRES."""
    planned_are_holes: bool = True
    """Whether a node that Slurm has planned for a pending job may be used until that job's announced start."""
    powered_down_are_holes: bool = False
    """Whether nodes that Slurm has powered down, or is powering up, may be used: Slurm then starts them for
    fragments, which takes its time and its power."""
    options: dict[str, str] = Field(default_factory=dict)
    """Further `sbatch` options of every fragment's job, by long name: `{"gres": "gpu:4"}`."""
    grace_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds from SIGTERM to SIGKILL for a preempted fragment; default: GraceTime of the partition or the QOS,
    or KillWait where nothing preempts."""
    time_limit_s: Annotated[float, Field(ge=60)] = 4 * 3600.0
    """Longest time limit of a fragment's job, in seconds. The limit is shorter where a foreground job is
    announced for the node."""
    unpreempted_limit_s: Annotated[float, Field(ge=60)] = 600.0
    """Longest time limit where Slurm preempts nothing (`preemption: none`), in seconds: an unannounced
    foreground job waits at most this long for a node."""
    shortest_s: Annotated[float, Field(ge=60)] = 120.0
    """No fragment is submitted to a node that is free for less than this, in seconds."""
    pending_limit_s: Annotated[float, Field(gt=0)] = 30.0
    """A fragment's job that is still pending after this many seconds is withdrawn: another job has got its
    node."""
    array_from: Annotated[int, Field(ge=2)] = 8
    """From this many fragments of one trainer on, they are submitted as one job array, and Slurm chooses which
    of them gets which of their nodes."""

    run_as: Literal["service", "submitter"] = "service"
    """The Unix account that trainers' code runs in: the service's own, or that of the user who submitted the
    trainer, by the launcher that `oakum run-as install` installs."""
    spool_dir: Path | None = None
    """With `run_as: submitter`: folder shared by all nodes in which each account has a folder of its own, for
    configs and checkpoints."""
    launcher: Path = Path("/usr/local/libexec/oakum/run-as")
    """Where the launcher is installed, on this machine and on the nodes."""

    @model_validator(mode="after")
    def _has_a_spool(self) -> Self:
        if self.run_as == "submitter" and (self.spool_dir is None or not self.spool_dir.is_absolute()):
            raise ValueError(
                "run_as is submitter and spool_dir is not an absolute path: set OAKUM_SLURM_SPOOL_DIR to the "
                "folder that `oakum run-as install` was given as --spool"
            )
        return self

    @model_validator(mode="after")
    def _leaves_gpus_to_fragments(self) -> Self:
        if self.slots == "gpu" and (given := sorted(_OF_GPUS.intersection(self.options))):
            raise ValueError(
                f"options name {', '.join(given)}, and with slots: gpu each fragment asks for its own GPUs: leave "
                f"{' and '.join(given)} out of {variable_of(type(self), 'options')}"
            )
        return self

    def refusal(self, asked: SlurmSpec) -> str | None:
        """Why no job is submitted with what a spec asks for, with what is allowed; None if all of it is."""
        lists = (
            ("qos", [asked.qos], self.allow_qos, "allow_qos"),
            ("account", [asked.account], self.allow_accounts, "allow_accounts"),
            ("constraint", asked.features, self.allow_constraints, "allow_constraints"),
            ("reservation", [asked.reservation], self.allow_reservations, "allow_reservations"),
        )
        every = ((field, name, allowed, setting) for field, names, allowed, setting in lists for name in names)
        for field, name, allowed, setting in every:
            if name is not None and name not in allowed:
                given = f"give {' or '.join(allowed)}, or leave it out" if allowed else "leave it out"
                variable = variable_of(type(self), setting)
                return (
                    f"slurm.{field}: {name} is not allowed here: {given}, or ask an administrator to add it to "
                    f"{variable}"
                )
        return None

    @property
    def longest_s(self) -> float:
        """The longest time limit that applies to a fragment's job, in seconds."""
        return min(self.time_limit_s, self.unpreempted_limit_s) if self.preemption == "none" else self.time_limit_s
