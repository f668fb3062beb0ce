"""Every setting of the service, in one typed object, read from the command line, `OAKUM_*` variables and the
configuration file, in this order."""

from __future__ import annotations

import os
import socket
from functools import cached_property
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from oakum_service.config_file import chosen_file, nearest, read_groups, read_section
from oakum_service.errors import ConfigurationError
from oakum_service.network.webhook_addresses import AllowedAddresses
from oakum_service.scheduler_table import SCHEDULERS, SchedulerKind, scheduler_names
from oakum_solver.errors import ProblemError
from oakum_solver.exploration import Exploration
from oakum_solver.guard import StarvationGuard
from oakum_solver.objectives import Expression, NamedObjective, Objective, parse_objective
from oakum_solver.problem import MilpSolver, Terms
from oakum_worker.errors import fault_of
from oakum_worker.spec_options import NotifySpec, SlurmSpec


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


def _hosts(entries: list[str]) -> list[str]:
    AllowedAddresses(entries, public=True)
    return entries


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


def _mail_address(address: str) -> str:
    return NotifySpec(email=address).recipient[1]


class _FileSource(PydanticBaseSettingsSource):
    """Takes a group's settings from the configuration file."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Value, name and whether it is to be decoded, of one setting; pydantic does not call it here."""
        return read_section(group_of(self.settings_cls)).get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The settings in the file. Raises `ConfigurationError` for names that the group does not have."""
        group = group_of(self.settings_cls)
        section, known = dict(read_section(group)), setting_names(self.settings_cls)
        where = f"{chosen_file()}: " + (f"[{group}] " if group else "")
        for name in section:
            if name not in known:
                raise ConfigurationError(f"{where}{name} is no setting{nearest(name, known)}")
        expected = dict.fromkeys((*_TABLES, *SCHEDULERS))  # a scheduler reads its own table
        if not group and (unknown := [table for table in read_groups() if table not in expected]):
            tables = ", ".join(f"[{table}]" for table in expected)
            raise ConfigurationError(f"{where}[{unknown[0]}] is no group of settings, expected {tables}")
        return section


class SettingsGroup(BaseSettings):
    """Settings read from environment variables, else from the configuration file. Raises `ConfigurationError`,
    which names each variable, or line of the file, with an invalid value."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigurationError("; ".join(self._explain(dict(item)) for item in error.errors())) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given counts more than the environment, and that more than the file."""
        return init_settings, env_settings, _FileSource(settings_cls)

    def _explain(self, item: dict[str, Any]) -> str:
        words = [str(part) for part in item["loc"]]
        variable, path = variable_of(type(self), "_".join(words)), chosen_file()
        in_file = path is not None and words[0] in read_section(group_of(type(self)))
        if in_file and variable_of(type(self), words[0]) not in os.environ:
            variable = f"{path}: " + ".".join([*filter(None, [group_of(type(self))]), *words])
        return f"{variable} is {item['input']!r}: {fault_of(item)}"


def variable_of(group: type[BaseSettings], name: str) -> str:
    """The environment variable of one setting of the group."""
    return (group.model_config["env_prefix"] + name).upper()


def group_of(group: type[BaseSettings]) -> str:
    """The name of the group's table in the configuration file; empty for the settings that are in no table."""
    return group.model_config["env_prefix"].removeprefix("OAKUM_").removesuffix("_").lower()


def setting_names(group: type[BaseSettings]) -> list[str]:
    """The names of the group's own settings, groups within it left out."""
    return [name for name in group.model_fields if name not in _TABLES]


class LocalClusterSettings(SettingsGroup):
    """The embedded cluster: virtual nodes of this machine under a small foreground load."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_LOCAL_")

    nodes: Annotated[int, Field(ge=1, le=256)] = 4
    seed: int = 7
    """Seed of the foreground load; equal seeds repeat it."""
    load: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Share of all node-time that foreground jobs ask for, from 0 (no foreground jobs) to less than 1."""
    swf: Path | None = None
    """SWF log to take the foreground jobs from; default: the workload model of `schedulers.workload`."""
    time_compression: Annotated[float, Field(gt=0)] = 600.0
    """Seconds of the workload that pass in one real second."""
    shortest_job_s: float = 10.0
    longest_job_s: float = 45.0
    """Run times of foreground jobs are clipped to `shortest_job_s` ... `longest_job_s`, in real seconds."""
    grace_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds from SIGTERM to SIGKILL when a foreground job takes a node."""
    fork_server: bool = True
    """Fork agents and ranks from a process that has already imported what they need. Ignored on a machine with
    a GPU."""


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


class NoticeSettings(SettingsGroup):
    """Who is notified of trainers beside the recipients in their specs, and how webhooks and e-mails are sent."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_NOTICES_")

    allow: Annotated[list[str], AfterValidator(_hosts)] = Field(default_factory=list)
    """Hosts and networks that webhooks may reach beside public addresses: `["*.example.org", "10.1.0.0/16"]`."""
    public: bool = True
    """Whether webhooks may reach every public Internet address; otherwise only those in `allow`."""
    secret_file: Path | None = None
    """File with the secret that webhooks are signed with; without it they are not signed."""
    mail_from: Annotated[str, Field(max_length=254), AfterValidator(_mail_address)] | None = None
    """Sender address of e-mails, in the header and the envelope; without one no e-mail is sent."""
    sendmail: Path = Path("/usr/sbin/sendmail")
    """Program that e-mails are handed to; it is called with `-t -i -f SENDER`."""
    everybody: list[NotifySpec] = Field(default_factory=list)
    """Recipients notified of every trainer: `[{"email": "ops@example.org", "on": ["failed"]}]`."""
    users: dict[str, list[NotifySpec]] = Field(default_factory=dict)
    """Recipients notified of one user's trainers, by the name of the user's token: `{"ada": [{"webhook":
    "https://..."}]}`."""
    starved_after_s: Annotated[float, Field(gt=0)] = 900.0
    """A trainer that has been without nodes for this many seconds while some are idle counts as starved."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 10.0
    """An attempt to deliver a notice fails when the recipient has not accepted it within this many seconds."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 12
    """How often delivery of a notice is attempted before it is given up."""
    retry_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between the first and the second attempt; each further wait is twice as long, at most one hour."""

    @cached_property
    def allowed(self) -> AllowedAddresses:
        """The addresses that webhooks may reach."""
        return AllowedAddresses(self.allow, public=self.public)


class QuotaSettings(SettingsGroup):
    """What each token, and each user with a token of the role user, may use, unless an administrator has set
    another quota for the user."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_QUOTA_")

    trainers: Annotated[int, Field(ge=0)] = 100
    """Most live trainers of one user."""
    node_hours: Annotated[float, Field(ge=0)] | None = None
    """Most node-hours of one user's trainers in a calendar week (UTC); None means no limit. The limit of nodes at
    one time is `Settings.user_cap`."""
    storage_gib: Annotated[float, Field(ge=0)] | None = None
    """Most GiB of checkpoints of one user, above which the user submits no further trainer; None means no
    limit."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Largest weight that a user may give a trainer."""
    curve_gain: Annotated[float, Field(ge=1)] = 1.1
    """How much more speed per node a user's curve may claim for more nodes than for the fewest: caches may help a
    little, and what is claimed buys nodes."""
    requests_per_s: Annotated[float, Field(gt=0)] = 50.0
    """Requests per second of each token of the roles user and viewer; `inf` for no limit."""
    streams: Annotated[int, Field(ge=1)] = 16
    """Event streams that each token of these roles may have open."""


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
    look_ahead_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds over which a plan counts its gains (T_fwd)."""
    solver_limit_s: Annotated[float, Field(gt=0)] = 5.0
    """Longest time in seconds that the solver takes for a plan."""
    milp_solver: Annotated[MilpSolver, AfterValidator(_installed)] = "cbc"
    groups: bool = False
    """Whether plans count how long past holes lasted and which nodes are expected to leave together. Announced
    starts of foreground jobs count in any case."""
    user_cap: Annotated[int, Field(ge=1)] | None = None
    """Most nodes that all trainers of one user may have together; None means no limit."""
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
    def terms(self) -> Terms:
        """Which terms beside samples count in plans: losses when nodes leave, with `groups`. That a trainer gains
        nothing after its last sample does not count: the plan is made anew every second, and that term would take
        the nodes from a trainer with a few seconds left, because others gain more over the whole look-ahead."""
        return Terms(departures=self.groups, completion=False)

    @property
    def database(self) -> str:
        """The database's SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'oakum.db'}"

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
_TABLES = ("local", "slurm", "notices", "quota")


def this_host() -> str:
    """Name of this host, for the lease and for messages."""
    return socket.gethostname()
