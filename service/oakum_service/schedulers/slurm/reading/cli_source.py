"""Reads Slurm's state with its commands: `scontrol show nodes`, `squeue`, and sometimes `scontrol show
reservations`."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from oakum_service.config import SlurmSettings
from oakum_service.errors import CommandFailed, SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.reading import payloads, reservations, text
from oakum_service.schedulers.slurm.reading.payloads import Origin, ParsedAnswer, to_state
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState
from oakum_service.schedulers.slurm.reading.versions import Dialect, SlurmVersion, choose_dialect

_NO_JSON = re.compile(r"json|serializ|data_parser|unrecognized option|invalid option", re.IGNORECASE)

_EVERY_JOB = ("--all", "--states=all")
"""Include jobs that have ended: slurmctld sends them in any case, and some of them tell which nodes it has
taken from us."""

_ALL_OF_EACH_NODE = ("scontrol", "--all", "--oneliner", "--details", "show", "nodes")
"""With what jobs have of each node's GRES, which is a detail to `scontrol`."""

_log = logging.getLogger(__name__)


class CliSource:
    """A `StateSource` that runs Slurm's commands. Nodes are read before jobs, so that a job that starts in between
    is seen twice rather than missed."""

    def __init__(
        self,
        settings: SlurmSettings,
        commands: SlurmCommands | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._commands = commands or SlurmCommands(settings)
        self._clock = clock
        self._format = settings.format
        self._dialect: Dialect | None = None
        self._controller = ""
        self._reservations: ParsedAnswer[SlurmReservation] = ParsedAnswer(())
        self._reservations_at: float | None = None

    def read(self) -> SlurmState:
        """Read the present state. Raises `SchedulerError`; the next call then looks the version up again, since
        Slurm may have been upgraded."""
        try:
            return self._read()
        except SchedulerError as error:
            self._dialect = None
            if not self._speaks_no_json(error):
                raise
            _log.warning("Slurm's commands print no JSON here; their text is read instead: %s", error)
            self._format = "text"
            return self._read()

    def ping(self) -> None:
        """Ask by `scontrol ping`. Raises `SchedulerError` if no slurmctld answers."""
        answer = self._commands.run("scontrol", "ping").decode(errors="replace").strip()
        if " UP" not in answer:
            raise SchedulerError(f"`scontrol ping`: {answer or 'it wrote nothing'}")

    def cycle_s(self) -> float | None:
        """Seconds of the main scheduler's last cycle, from `sdiag`; None if it does not tell."""
        try:
            return text.read_cycle_s(self._commands.run("sdiag"))
        except SchedulerError as error:
            _log.debug("sdiag shows no time of a scheduling cycle: %s", error)
            return None

    def _read(self) -> SlurmState:
        dialect = self._known_dialect()
        taken_at = self._clock()
        nodes = self._nodes(dialect)
        jobs = self._jobs(dialect)
        if reservations.are_old(self._reservations_at, taken_at):
            self._reservations = self._read_reservations(dialect)
            self._reservations_at = taken_at
        return to_state(taken_at, self._controller, nodes, jobs, self._reservations)

    def _known_dialect(self) -> Dialect:
        if self._dialect is None:
            version = SlurmVersion.parse(
                self._commands.run("scontrol", "--version").decode(errors="replace"), "`scontrol --version`"
            )
            config = self._commands.run("scontrol", "show", "config")
            self._controller = text.read_controller(config) or str(version)
            self._dialect = choose_dialect(version, self._format, self._settings.parser)
        return self._dialect

    def _nodes(self, dialect: Dialect) -> ParsedAnswer[SlurmNode]:
        if dialect.whole_json:
            answer = self._ask(dialect, "scontrol", "--all", "show", "nodes", dialect.json_option)
            return payloads.read_nodes(*answer)
        if dialect.json:
            return payloads.read_nodes(*self._ask(dialect, "sinfo", "--all", dialect.json_option))
        return text.read_nodes(*self._ask(dialect, *_ALL_OF_EACH_NODE))

    def _jobs(self, dialect: Dialect) -> ParsedAnswer[SlurmJob]:
        if dialect.json:
            return payloads.read_jobs(*self._ask(dialect, "squeue", *_EVERY_JOB, dialect.json_option))
        mark = text.new_mark()
        output, _ = self._ask(dialect, "squeue", *_EVERY_JOB, "--noheader", f"--Format={text.job_format(mark)}")
        return text.read_jobs(output, mark, Origin("`squeue`", dialect.name))

    def _read_reservations(self, dialect: Dialect) -> ParsedAnswer[SlurmReservation]:
        if dialect.whole_json:
            answer = self._ask(dialect, "scontrol", "--all", "show", "reservations", dialect.json_option)
            return payloads.read_reservations(*answer)
        answer = self._ask(dialect, "scontrol", "--all", "--oneliner", "show", "reservations")
        return text.read_reservations(*answer)

    def _ask(self, dialect: Dialect, name: str, *arguments: str) -> tuple[bytes, Origin]:
        output = self._commands.run(name, *arguments, epoch_times=True)
        return output, Origin(f"`{' '.join([name, *arguments])}`", dialect.name)

    def _speaks_no_json(self, error: SchedulerError) -> bool:
        """Whether the error means that the commands were built without JSON, which their version does not tell."""
        return (
            self._format == "auto" and isinstance(error, CommandFailed) and bool(_NO_JSON.search(error.last_line))
        )
