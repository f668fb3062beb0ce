"""Every setting of the service, in one typed object, read from `OAKUM_*` variables or the command line."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from oakum_service.errors import ConfigurationError
from oakum_solver.errors import ProblemError
from oakum_solver.exploration import Exploration
from oakum_solver.guard import StarvationGuard
from oakum_solver.objectives import Expression, Metric, Objective, parse_metric
from oakum_solver.problem import MilpSolver, Terms


def _metric(given: object) -> Metric:
    if isinstance(given, (Objective, Expression)):
        return given
    try:
        return parse_metric(str(given))
    except ProblemError as error:
        raise ValueError(str(error)) from error


def _installed(solver: MilpSolver) -> MilpSolver:
    if solver == "highs" and find_spec("highspy") is None:
        raise ValueError("highspy is not installed: install oakum[highs], or leave it at 'cbc'")
    return solver


class _FromEnvironment(BaseSettings):
    """Raises `ConfigurationError` with the variable's name for each setting that cannot be so."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigurationError("; ".join(self._explain(dict(item)) for item in error.errors())) from error

    def _explain(self, item: dict[str, Any]) -> str:
        variable = (self.model_config["env_prefix"] + "_".join(str(part) for part in item["loc"])).upper()
        return f"{variable} is {item['input']!r}: {item['msg'].removeprefix('Value error, ')}"


class LocalClusterSettings(_FromEnvironment):
    """The embedded cluster: virtual nodes of this machine under a small foreground load."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_LOCAL_")

    nodes: Annotated[int, Field(ge=1, le=256)] = 4
    seed: int = 7
    """Repeats the same foreground load."""
    load: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Share of all node-time that foreground jobs ask for; 0 means no foreground jobs."""
    swf: Path | None = None
    """Take the foreground jobs from this SWF log instead of the workload model."""
    time_compression: Annotated[float, Field(gt=0)] = 600.0
    """Seconds of the workload that pass in one real second."""
    shortest_job_s: float = 10.0
    longest_job_s: float = 45.0
    """Real seconds that a foreground job's run time is clipped to."""
    grace_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds from SIGTERM to SIGKILL when a foreground job takes a node."""


class SlurmSettings(_FromEnvironment):
    """A Slurm cluster: how it is read, and how our jobs get into it."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_SLURM_")

    partition: str = ""
    """Where fragments are submitted: a partition that foreground jobs may preempt, or with a QOS that they may."""
    qos: str | None = None
    account: str | None = None
    preemption: Literal["partition", "qos", "none"] = "partition"
    """How Slurm takes nodes back. With `none` fragments are short, and end before a foreground job is expected."""
    state: Literal["cli", "rest", "push"] = "cli"
    """Where the state comes from: Slurm's commands, slurmrestd, or a collector that posts it (`oakum collect`)."""
    format: Literal["auto", "json", "text"] = "auto"
    """What the commands are asked for; `auto`: JSON where it tells all that is needed, which is from 23.02 on."""
    rest_url: str = ""
    """Of slurmrestd: `http://head:6820`, or `unix:/run/slurmrestd/socket`."""
    rest_user: str | None = None
    """Name that goes with the JWT; default: this process's user."""
    jwt_file: Path | None = None
    """Holds the JWT for slurmrestd, read anew for each call; default: the variable SLURM_JWT."""
    parser: str | None = None
    """Data parser, such as `v0.0.40`; default: the newest that both sides know."""
    bin_dir: Path | None = None
    """Folder of Slurm's commands; default: found on PATH."""
    command_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    poll_floor_s: Annotated[float, Field(gt=0)] = 10.0
    """Least seconds between two reads of the state. Hooks tell in between."""
    hook_floor_s: Annotated[float, Field(gt=0)] = 2.0
    """Least seconds between two reads when a hook has told of a change."""
    push_max_age_s: Annotated[float, Field(gt=0)] = 120.0
    """A pushed state that is older is none: nothing is planned or submitted on it."""
    slow_cycle_s: Annotated[float, Field(gt=0)] = 5.0
    """A scheduler cycle of Slurm's longer than this makes the reads rarer."""
    type_features: list[str] = Field(default_factory=list)
    """Node features that make nodes with them a type of their own, beside their GRES."""
    planned_are_holes: bool = True
    """Whether nodes that Slurm has planned for a pending job may be used until its announced start."""
    options: dict[str, str] = Field(default_factory=dict)
    """Further options of `sbatch` for every fragment, by long name: `{"gres": "gpu:4"}`."""
    grace_s: Annotated[float, Field(gt=0)] | None = None
    """From SIGTERM to SIGKILL; default: GraceTime of the partition or the QOS, KillWait where nothing preempts."""
    time_limit_s: Annotated[float, Field(ge=60)] = 4 * 3600.0
    """Longest time limit of a fragment's job; shorter where a foreground job is announced."""
    unpreempted_limit_s: Annotated[float, Field(ge=60)] = 600.0
    """The same where Slurm preempts nothing (`preemption: none`): a job that comes unannounced waits at most so
    long for a node."""
    shortest_s: Annotated[float, Field(ge=60)] = 120.0
    """No fragment is submitted for less."""
    pending_limit_s: Annotated[float, Field(gt=0)] = 30.0
    """A fragment's job that is still pending after so long has lost its node, and is withdrawn."""
    array_from: Annotated[int, Field(ge=2)] = 8
    """So many fragments of one trainer are submitted as one job array, whose nodes Slurm chooses among theirs."""

    @property
    def longest_s(self) -> float:
        """The time limit that holds."""
        return min(self.time_limit_s, self.unpreempted_limit_s) if self.preemption == "none" else self.time_limit_s


class Settings(_FromEnvironment):
    """The service's settings."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_")

    data_dir: Path = Path(".oakum")
    """Database (SQLite), fragments' folders, checkpoints, tokens."""
    database_url: str | None = None
    """SQLAlchemy URL; default: SQLite in the data directory."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8470
    """0 takes a free one."""
    public_url: str | None = None
    """Address under which the nodes reach the service; default: host and port."""
    scheduler: str = "local"
    objective: Annotated[Metric, NoDecode, PlainValidator(_metric)] = Objective.THROUGHPUT
    """What plans maximise: one of `Objective`, or an expression of `oakum_solver.expressions`."""
    look_ahead_s: Annotated[float, Field(gt=0)] = 30.0
    """T_fwd of the plans."""
    solver_limit_s: Annotated[float, Field(gt=0)] = 5.0
    milp_solver: Annotated[MilpSolver, AfterValidator(_installed)] = "cbc"
    groups: bool = False
    """Plan with how long past holes lasted, and with which nodes are expected to leave together. Announced starts
    of foreground jobs count in any case."""
    user_cap: Annotated[int, Field(ge=1)] | None = None
    """Most nodes that the trainers of one user may have together."""
    starvation_guard_s: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds without nodes after which a trainer is guaranteed some; `inf`: never."""
    starvation_quantum_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """Seconds with nodes that end the guarantee."""
    poll_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds between two looks at the scheduler when nothing calls for one."""
    debounce_s: float = 0.05
    """Events closer together than this make one plan."""
    heartbeat_timeout_s: float = 10.0
    """An agent that has not reported for so long is lost."""
    regroup_timeout_s: float = 60.0
    """A member that has not formed its generation for so long after it was published is lost."""
    rank_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """A rank that has given its agent no sign of life for so long hangs: it is killed and started anew."""
    leave_deadline_s: Annotated[float, Field(gt=0)] = 1.0
    """From SIGTERM to a fragment's exit while others train on: their step has to end, if it does by then."""
    drain_s: Annotated[float, Field(ge=0)] = 3.5
    """On the embedded cluster, which ends with the service: for how long fragments may checkpoint before."""
    warm_up_timeout_s: float = 900.0
    """A task that has not been built and loaded for so long after its launch hangs: its trainer fails."""
    start_up_s: float = 6.0
    """Start-up seconds of a joining node until they have been measured."""
    stall_s: float = 0.5
    """Stall of a rescale until it has been measured."""
    learn_curves: bool | None = None
    """Plan with curves learnt from measured rates; default: yes, but not on the embedded cluster, whose nodes are
    one machine: how fast a trainer is there says more of the machine's cores and other work than of its size."""
    explore_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Most of a trainer's node-time that is spent on trying sizes whose rate is not known."""
    dry_run: bool = False
    """Plan and show everything, launch and cancel nothing."""
    local: LocalClusterSettings = Field(default_factory=LocalClusterSettings)
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)

    @property
    def learns_curves(self) -> bool:
        """Whether plans are made with learnt curves."""
        return self.scheduler != "local" if self.learn_curves is None else self.learn_curves

    @property
    def exploration(self) -> Exploration:
        """What trainers may spend on trying sizes."""
        return Exploration(share=self.explore_share if self.learns_curves else 0.0)

    @property
    def starvation_guard(self) -> StarvationGuard:
        """When a trainer is guaranteed nodes, and for how long."""
        return StarvationGuard(self.starvation_guard_s, self.starvation_quantum_s)

    @property
    def terms(self) -> Terms:
        """What plans count. Not that a trainer gains nothing after its last sample: planned anew every second,
        that takes the nodes from whoever has a few seconds left, as others gain more over the whole look-ahead."""
        return Terms(departures=self.groups, completion=False)

    @property
    def database(self) -> str:
        """The database's SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'oakum.db'}"

    @property
    def fragments_dir(self) -> Path:
        """Where each fragment has a folder with its config and log."""
        return self.data_dir.resolve() / "fragments"

    @property
    def checkpoints_dir(self) -> Path:
        """Where each trainer has a folder of durable checkpoints."""
        return self.data_dir.resolve() / "checkpoints"

    @property
    def client_file(self) -> Path:
        """Where the CLI on this machine finds the service and its token."""
        return self.data_dir.resolve() / "client.json"

    @property
    def service_file(self) -> Path:
        """Where agents look up the service's address when it has moved."""
        return self.data_dir.resolve() / "service.json"


def this_host() -> str:
    """Name of this host, for lease holders and messages."""
    return socket.gethostname()
