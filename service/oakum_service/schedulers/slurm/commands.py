"""Runs Slurm's commands, each in a process that cannot outlive its time limit."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from oakum_service.config import SlurmSettings
from oakum_service.errors import CommandFailed
from oakum_service.schedulers.slurm.calls import counted
from oakum_worker.errors import reason_of

_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_OPTIONS = ("SLURM_", "SQUEUE_", "SINFO_", "SBATCH_", "SCANCEL_", "SALLOC_", "SRUN_")
"""Environment variables that act as options of Slurm's commands, such as SQUEUE_USERS, which would hide other
users' jobs."""
_LONGEST_SHOWN = 200
_REAP_S = 5.0


class SlurmCommands:
    """Runs Slurm's commands without a shell and counts them."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._bin_dir = settings.bin_dir
        self._timeout_s = settings.command_timeout_s

    def run(self, name: str, *arguments: str, given: bytes | None = None, epoch_times: bool = False) -> bytes:
        """Run a command and return what it writes to stdout.

        Args:
            name: Command, such as `squeue`.
            arguments: One string each; no shell sees them.
            given: Bytes for its stdin.
            epoch_times: Have it write times as Unix seconds. Not for `sbatch`, whose environment the job inherits.

        Raises:
            CommandFailed: It could not be started, ended with a status other than 0, or took longer than
                `command_timeout_s`; in the last case it was killed with all processes that it had started.
        """
        command = [str(self._find(name)), *arguments]
        with counted(name):
            return self._finish(command, self._start(command, epoch_times), given)

    def guarded(self, name: str) -> tuple[str, ...]:
        """The words to put before a Slurm command that another program runs, so that it runs without variables
        that act as options and is killed after the time limit."""
        dropped = [word for variable in os.environ if _is_option(variable) for word in ("-u", variable)]
        limit = ("timeout", "--signal=KILL", f"{self._timeout_s:g}")
        return ("env", *dropped, *limit, str(self._find(name)))

    def _find(self, name: str) -> Path:
        if self._bin_dir is not None:
            return self._bin_dir / name
        path = shutil.which(name)
        if path is None:
            raise CommandFailed(
                f"{name} is not on PATH ({os.environ.get('PATH', '')}): install Slurm's client commands on this "
                "machine, or set OAKUM_SLURM_BIN_DIR to their folder"
            )
        return Path(path)

    def _start(self, command: list[str], epoch_times: bool) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(epoch_times),
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailed(
                f"{command[0]} could not be started: {reason_of(error)}; see OAKUM_SLURM_BIN_DIR"
            ) from error

    def _finish(self, command: list[str], process: subprocess.Popen[bytes], given: bytes | None) -> bytes:
        try:
            output, errors = process.communicate(given or b"", timeout=self._timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(
                f"`{_shown(command)}` had not ended after {self._timeout_s:g} s and was killed: is slurmctld up? "
                "OAKUM_SLURM_COMMAND_TIMEOUT_S allows it more"
            ) from error
        finally:
            _kill(process)
        if process.returncode == 0:
            return output
        last_line = _last_line(errors)
        ended = f"status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise CommandFailed(
            f"`{_shown(command)}` ended with {ended}: {last_line or 'it wrote nothing to stderr'}",
            last_line=last_line,
        )


def _environment(epoch_times: bool) -> dict[str, str]:
    """This process's environment without Slurm's variables, except those that name its configuration or carry a
    token, and with LC_ALL=C. With `epoch_times` Slurm's commands write times as Unix seconds."""
    kept = {name: value for name, value in os.environ.items() if not _is_option(name)} | {"LC_ALL": "C"}
    if epoch_times:
        kept |= {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC"}
    return kept


def _is_option(variable: str) -> bool:
    return variable.startswith(_OPTIONS) and variable not in _KEPT


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command's process group if it still runs, and close its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _shown(command: list[str]) -> str:
    line = shlex.join(command)
    return line if len(line) <= _LONGEST_SHOWN else line[:_LONGEST_SHOWN] + " ..."


def _last_line(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
