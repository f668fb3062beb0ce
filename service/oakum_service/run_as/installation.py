"""Installs the launcher that enters users' accounts, its configuration, and the rule of sudo that allows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from oakum_service.errors import ConfigurationError
from oakum_service.files.replacing import replace_file
from oakum_service.run_as import launcher

LAUNCHER = Path("/usr/local/libexec/oakum/run-as")
CONFIG = Path(launcher.CONFIG)
SUDO_RULE = Path("/etc/sudoers.d/oakum-run-as")
_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python")
"""Interpreters of the launcher: root runs none that others may change."""
_SYSTEM_ACCOUNTS = ("munge", "nobody", "slurm")
"""Accounts that some systems give high ids."""
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@-]*")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class LauncherInstallation:
    """The launcher on this machine. The service's host and every node need one, with the same paths."""

    service_account: str
    """The account that the service runs in."""
    spool: Path
    """Folder on a shared file system with one folder for each account."""
    python: Path
    """Python of the worker, which runs as users: they have to be able to execute it."""
    least_uid: int = 1000
    refused: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher: Path = LAUNCHER
    config: Path = CONFIG
    sudo_rule: Path = SUDO_RULE

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for a name or a path that needs quoting in a rule of sudo."""
        if not _ACCOUNT.fullmatch(self.service_account):
            raise ConfigurationError(f"the account {self.service_account!r}: expected the service's account")
        for path in (self.spool, self.python, self.launcher, self.config, self.sudo_rule):
            if not _PLAIN_PATH.fullmatch(str(path)):
                raise ConfigurationError(
                    f"the path {str(path)!r}: expected an absolute one of letters, digits and ._/+@-"
                )

    def install(self) -> None:
        """Write launcher, configuration and rule of sudo, and make the spool. Raises `ConfigurationError` if this
        is not root, something is missing, or sudo does not accept the rule."""
        if os.geteuid() != 0:
            raise ConfigurationError("the launcher belongs to root: run this with sudo")
        for folder in (self.launcher.parent, self.config.parent, self.spool):
            _make_roots(folder)
        _write(self.config, json.dumps(self._settings(), indent=2) + "\n", 0o644)
        _write(self.launcher, self._script(), 0o755)
        self._allow()

    def uninstall(self) -> None:
        """Remove rule, launcher and configuration; users' folders stay."""
        for file in (self.sudo_rule, self.launcher, self.config):
            file.unlink(missing_ok=True)

    def rule(self) -> str:
        """The rule of sudo. A session of PAM could move fragments out of Slurm's control group, and a terminal of
        their own would keep Slurm's signals from them."""
        return (
            f"Defaults!{self.launcher} !requiretty, !use_pty, !pam_session, env_reset\n"
            f"{self.service_account} ALL=(root) NOPASSWD: {self.launcher}\n"
        )

    def _settings(self) -> dict[str, object]:
        return {
            "python": str(self.python),
            "spool": str(self.spool),
            "least_uid": self.least_uid,
            "refused": sorted({self.service_account, *_SYSTEM_ACCOUNTS, *self.refused}),
            "environment": dict(self.environment),
        }

    def _script(self) -> str:
        interpreter = next((one for one in _PYTHONS if Path(one).exists()), None)
        if interpreter is None:
            needed = " or ".join(_PYTHONS)
            raise ConfigurationError(f"the launcher needs {needed}: install the system's Python")
        text = (files("oakum_service.run_as") / "launcher.py").read_text(encoding="utf-8")
        text = text.replace("#!/usr/bin/python3 -I", f"#!{interpreter} -I", 1)
        return text.replace(f'CONFIG = "{launcher.CONFIG}"', f'CONFIG = "{self.config}"', 1)

    def _allow(self) -> None:
        visudo = shutil.which("visudo", path="/usr/sbin:/usr/bin:/sbin")
        if visudo is None:
            raise ConfigurationError("there is no visudo on this machine: install sudo")
        # Checked before it is in its place: a wrong file there ends everybody's sudo.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix="-oakum") as draft:
            draft.write(self.rule())
            draft.flush()
            done = subprocess.run(
                [visudo, "-c", "-q", "-f", draft.name], capture_output=True, text=True, check=False
            )
        if done.returncode != 0:
            raise ConfigurationError(f"sudo does not accept the rule: {(done.stderr or done.stdout).strip()}")
        _write(self.sudo_rule, self.rule(), 0o440)


def _make_roots(folder: Path) -> None:
    """Make a folder of root's, and refuse one that others may write to."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        launcher.refuse_changeable(folder, folder.lstat())
    except (OSError, launcher.InstallationError) as error:
        raise ConfigurationError(str(error)) from error


def _write(file: Path, text: str, mode: int) -> None:
    try:
        replace_file(file, text, mode)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
