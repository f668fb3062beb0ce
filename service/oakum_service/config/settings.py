"""The service's settings, those of its groups among them."""

from __future__ import annotations

from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_settings import NoDecode, SettingsConfigDict

from oakum_service.config.group import SettingsGroup
from oakum_service.config.local_cluster import LocalClusterSettings
from oakum_service.config.notices import NoticeSettings
from oakum_service.config.quota import QuotaSettings
from oakum_service.config.slurm import SlurmSettings
from oakum_service.files.data_dir import check_unnamed
from oakum_service.scheduler_table import SCHEDULERS, SchedulerKind, scheduler_names
from oakum_solver.errors import ProblemError
from oakum_solver.exploration import Exploration
from oakum_solver.guard import StarvationGuard
from oakum_solver.objectives import Expression, NamedObjective, Objective, parse_objective
from oakum_solver.planning import PlanningRules
from oakum_solver.problem import MilpSolver


def _objective(given: object) -> Objective:
    if isinstance(given, (NamedObjective, Expression)):
        return given
    try:
        return parse_objective(str(given))
    except ProblemError as error:
        raise ValueError(str(error)) from error


def _installed(solver: MilpSolver) -> MilpSolver:
    if solver == "highs" and find_spec("highspy") is None:
        raise ValueError(
            "highspy is not installed: run pip install '.[highs]' in Oakum's checkout, or choose 'cbc'"
        )
    return solver


def _networks(entries: list[str]) -> list[str]:
    for entry in entries:
        try:
            ip_network(entry)
        except ValueError as error:
            raise ValueError(
                f"{entry!r} is no address and no network: {error}: expected such as 10.0.0.5 or 10.0.0.0/24"
            ) from error
    return entries


def _known_scheduler(name: str) -> str:
    if name not in SCHEDULERS:
        raise ValueError(f"expected {scheduler_names()}")
    return name


class Settings(SettingsGroup):
    """All settings of the service."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_")

    data_dir: Path = Path(".oakum")
    """Folder for the SQLite database, the fragments' folders, checkpoints and tokens."""
    database_url: str | None = None
    """SQLAlchemy URL of the database; default: SQLite in the data directory."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8470
    """TCP port to listen on; 0 means any free port."""
    public_url: str | None = None
    """Address under which nodes reach the service; default: host and port."""
    socket: Path | None = None
    """Unix socket to listen on as well, on which accounts of this machine are known without a token."""
    socket_users: Annotated[str, Field(pattern="^(none|all|@.+)$")] = "none"
    """Which accounts beside administrators are users at the socket: `none`, `all`, or a group's members,
    `@GROUP`."""
    admin_group: str | None = None
    """Unix group whose members are administrators at the socket, as root and the service's account are."""
    tls_certificate: Path | None = None
    """PEM file with the certificate that the service shows, and its chain; without it the service speaks plain
    HTTP."""
    tls_key: Path | None = None
    """PEM file with the certificate's private key."""
    ca_file: Path | None = None
    """PEM file with the authorities that agents and this machine's CLI trust; default: the system's."""
    plain_http: bool = False
    """Whether the service may listen beyond this machine without TLS: behind a proxy that ends TLS, or on a
    network where nobody listens in."""
    proxies: Annotated[list[str], AfterValidator(_networks)] = Field(default_factory=list)
    """Addresses and networks of the proxies in front, whose X-Forwarded-For and X-Forwarded-Proto count:
    `["10.0.0.5"]`. Those of anybody else are ignored."""
    log_format: Literal["text", "json"] = "text"
    """Whether the service's log is lines for people, or a JSON object in each line."""
    scheduler: Annotated[str, AfterValidator(_known_scheduler)] = "local"
    objective: Annotated[Objective, NoDecode, PlainValidator(_objective)] = NamedObjective.SPEEDUP
    """What plans maximise: a member of `Objective`, or an expression of `oakum_solver.expressions`."""
    look_ahead_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds over which a plan counts its gains (T_fwd); default: a tenth of the time for which the idle nodes
    are expected to stay idle, by what the service has seen (`oakum_solver.look_ahead`)."""
    solver_limit_s: Annotated[float, Field(gt=0)] = 5.0
    """Longest time in seconds that the solver takes for a plan."""
    milp_solver: Annotated[MilpSolver, AfterValidator(_installed)] = "cbc"
    groups: bool = False
    """Whether plans count how long past holes lasted and which nodes are expected to leave together. Announced
    starts of foreground jobs count in any case."""
    user_cap: Annotated[int, Field(ge=1)] | None = None
    """Most nodes that all trainers of one user may have together; None means no limit."""
    limit_delay_p99_s: Annotated[float, Field(gt=0)] | None = None
    """Limit in seconds of the week's p99 of foreground jobs' delays; None: no limit."""
    limit_lost_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Limit of the share of the month's lent node-time that brought nothing; None: no limit."""
    starvation_guard_s: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds without nodes after which a trainer is guaranteed its minimum; `inf` switches the guard off."""
    starvation_quantum_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """Seconds with nodes after which the guarantee ends."""
    poll_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """Seconds between two turns of the control loop when no event triggers one earlier."""
    debounce_s: float = 0.05
    """Events within this many seconds of each other lead to one plan."""
    heartbeat_timeout_s: float = 10.0
    """An agent that has not reported for this many seconds counts as lost."""
    regroup_timeout_s: float = 60.0
    """A member that has not formed its generation this many seconds after it was published counts as lost."""
    rank_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """A rank that has given its agent no sign of life for this many seconds counts as hung: it is killed and
    started again."""
    leave_deadline_s: Annotated[float, Field(gt=0)] = 1.0
    """Longest time in seconds from SIGTERM to a fragment's exit while other members train on. It leaves at the
    next step boundary if there is one by then."""
    drain_s: Annotated[float, Field(ge=0)] = 3.5
    """Seconds that fragments get for their last checkpoint before the embedded cluster ends with the service."""
    warm_up_timeout_s: float = 900.0
    """A task that is not built and loaded this many seconds after its launch counts as hung: its trainer fails."""
    start_up_s: float = 6.0
    """Assumed start-up time of a joining node in seconds, until the trainer's own has been measured."""
    stall_s: float = 0.5
    """Assumed stall of a rescale in seconds, until the trainer's own has been measured."""
    learn_curves: bool | None = None
    """Whether plans use scalability curves learnt from measured rates. Default: yes, except on the embedded
    cluster: its virtual nodes share one machine, so rates there depend more on the machine's cores and other
    work than on the number of nodes."""
    explore_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Largest share of a trainer's node-time that may go into trying sizes of unknown rate."""
    trust_users: bool = False
    """Whether users who are no administrators may submit trainers although all trainers' code runs in the account
    that the service itself runs in."""
    dry_run: bool = False
    """Whether the service only plans and shows its plans: it launches, releases and cancels nothing."""
    local: LocalClusterSettings = Field(default_factory=LocalClusterSettings)
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    notices: NoticeSettings = Field(default_factory=NoticeSettings)
    quota: QuotaSettings = Field(default_factory=QuotaSettings)

    @property
    def scheduler_kind(self) -> SchedulerKind:
        """What the configured scheduler can do."""
        return SCHEDULERS[self.scheduler]

    @property
    def runs_as_submitters(self) -> bool:
        """Whether trainers' code runs in their users' Unix accounts."""
        return self.scheduler_kind.runs_as_submitters and self.slurm.run_as == "submitter"

    @property
    def users_may_submit(self) -> bool:
        """Whether others than administrators submit trainers: they are trusted with the service's account, or
        their code runs in their own."""
        return self.trust_users or self.runs_as_submitters

    @property
    def learns_curves(self) -> bool:
        """Whether plans use learnt curves."""
        return self.scheduler_kind.learns_curves if self.learn_curves is None else self.learn_curves

    @property
    def exploration(self) -> Exploration:
        """How much node-time trainers may spend on trying sizes."""
        return Exploration(share=self.explore_share if self.learns_curves else 0.0)

    @property
    def starvation_guard(self) -> StarvationGuard:
        """When a trainer is guaranteed nodes, and for how long."""
        return StarvationGuard(self.starvation_guard_s, self.starvation_quantum_s)

    @property
    def planning_rules(self) -> PlanningRules:
        """How plans are made, apart from trainers and nodes. Quotas of single users come on top of `user_cap`."""
        return PlanningRules(
            objective=self.objective,
            look_ahead_s=self.look_ahead_s,
            groups=self.groups,
            guard=self.starvation_guard,
            user_cap=self.user_cap,
            milp_solver=self.milp_solver,
            time_limit_s=self.solver_limit_s,
        )

    @property
    def database(self) -> str:
        """The database's SQLAlchemy URL. Raises `ConfigurationError` as `check_data_dir` does, where it is in the
        data directory."""
        if self.database_url:
            return self.database_url
        self.check_data_dir()
        return f"sqlite:///{self.data_dir.resolve() / 'oakum.db'}"

    def check_data_dir(self) -> None:
        """Raise `ConfigurationError` where nobody has named the data directory, and other accounts may have made
        the one in the working folder, or may replace it."""
        if "data_dir" not in self.model_fields_set:
            check_unnamed(self.data_dir)

    @property
    def fragments_dir(self) -> Path:
        """Folder with one folder for each fragment, which holds the fragment's config and log."""
        return self.data_dir.resolve() / "fragments"

    @property
    def checkpoints_dir(self) -> Path:
        """Folder with one folder of durable checkpoints for each trainer."""
        return self.data_dir.resolve() / "checkpoints"

    @property
    def client_file(self) -> Path:
        """File in which the CLI on this machine finds the service's address and a token."""
        return self.data_dir.resolve() / "client.json"

    @property
    def service_file(self) -> Path:
        """File in which agents look up the service's address after the service has moved."""
        return self.data_dir.resolve() / "service.json"


GROUPS: tuple[type[SettingsGroup], ...] = (
    Settings,
    LocalClusterSettings,
    SlurmSettings,
    NoticeSettings,
    QuotaSettings,
)
