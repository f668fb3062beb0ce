"""Installs the hooks as files on the head node and the nodes, and says which lines slurm.conf needs."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from oakum_service.errors import ConfigurationError
from oakum_service.files.replacing import replace_file
from oakum_service.schedulers.slurm.hooks.report import Hook

DEFAULT_SPOOL = Path("/var/spool/oakum")
DEFAULT_FALLBACK = Path("/dev/shm/oakum-hooks")
MOST_KEPT = 10_000
"""Most events that one folder of a spool keeps; the oldest are dropped."""
REST_S = 30
TOKEN_NAME = "slurm-hooks"
"""Name of the token that an installation makes."""
RESTART = (
    "restart slurmctld (`systemctl restart slurmctld`), and for hooks of the nodes every slurmd: after `scontrol "
    "reconfigure` Slurm goes on with the hooks that it had"
)
CONFIG = "curl.conf"
REPLAY = "replay"
UNITS = ("oakum-hooks-replay.service", "oakum-hooks-replay.timer")
_PLACES = ("ctld", "node")
"""Where hooks run: on the head node and on the nodes, as different users. Each has a folder of its own in the
spool."""
_PROGRAMS = {"CURL": "curl", "TIMEOUT": "timeout", "DATE": "date", "MKDIR": "mkdir", "MV": "mv", "RM": "rm"}
_WHERE = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@-]*")
_URL = re.compile(r"https?://[A-Za-z0-9_.:/\[\]~-]+")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")
_CLUSTER = re.compile(r"[A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class HookInstallation:
    """Slurm's hooks in a folder of this machine: installs and removes them, and tells the lines for slurm.conf.

    The head node needs the folder, and every node too if slurm.conf names the node hooks. Both kinds of hook
    are always installed.
    """

    folder: Path
    spool: Path = DEFAULT_SPOOL
    fallback: Path = DEFAULT_FALLBACK
    """Beginning of the names of the in-memory folders used when the spool cannot be written."""
    cluster: str = ""
    """Cluster name, for versions of Slurm that do not pass it to a node's hooks."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for a value that would need quoting in a script."""
        for path in (self.folder, self.spool, self.fallback):
            if not _PLAIN_PATH.fullmatch(str(path)):
                raise ConfigurationError(
                    f"the folder {str(path)!r}: expected an absolute path of letters, digits and ._/+@-, as the "
                    "hooks run without a PATH and a working folder: choose another --dir or --spool"
                )
        if not _CLUSTER.fullmatch(self.cluster):
            raise ConfigurationError(f"cluster {self.cluster!r}: expected Slurm's ClusterName, as in slurm.conf")

    @property
    def config_file(self) -> Path:
        """The file from which curl reads the service's address and the token."""
        return self.folder / CONFIG

    def install(self, url: str, token: str, owner: str | None, ca_file: Path | None = None) -> list[str]:
        """Write all files, each replaced atomically; returns commands that are left for the admin to run.

        `owner` is SlurmUser, who runs the head node's hooks; `ca_file` has the authorities that curl trusts, on
        every machine with hooks. Raises `ConfigurationError` if a program is missing,
        a value cannot be written, or a folder cannot be made.
        """
        contents = {self.config_file: (_curl_config(url, token, ca_file), 0o600)}
        programs = _find_programs()
        for hook in Hook:
            contents[self.folder / hook] = (self._hook(hook, programs), 0o755)
        contents[self.folder / REPLAY] = (self._fill("replay.sh", programs), 0o755)
        for unit, text in zip(UNITS, self._units(owner), strict=True):
            contents[self.folder / unit] = (text, 0o644)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            for file, (text, mode) in contents.items():
                replace_file(file, text, mode)
            # SlurmUser has to be able to enter it.
            self.spool.mkdir(parents=True, exist_ok=True, mode=0o755)
            for folder in self._spools():
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{error.filename}: {error.strerror}: choose a --dir and a --spool that this user may write"
            ) from error
        return self._give(owner)

    def _give(self, owner: str | None) -> list[str]:
        """Make `owner` the owner of the files that it has to read. If this user may not do that, returns the
        commands that do; otherwise none."""
        needed = [self.config_file, self.spool / "ctld"]
        try:
            user = pwd.getpwnam(owner or "")
            for path in needed:
                os.chown(path, user.pw_uid, user.pw_gid)
        except (KeyError, PermissionError):
            return [f"chown {owner or 'SLURMUSER'}: {' '.join(map(str, needed))}"]
        return []

    def uninstall(self) -> int:
        """Remove what `install` wrote, except a spool with events in it. Returns the number of these events."""
        for name in (*Hook, REPLAY, CONFIG, *UNITS):
            (self.folder / name).unlink(missing_ok=True)
        num_kept = self.num_kept()
        if num_kept == 0:
            for folder in (*self._spools(), *self._fallbacks()):
                shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.spool, self.folder):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return num_kept

    def num_kept(self) -> int:
        """Number of events on this machine that wait to be sent again."""
        return sum(len(list(folder.glob("*.json"))) for folder in (*self._spools(), *self._fallbacks()))

    def slurm_conf(self) -> list[str]:
        """The lines that slurm.conf needs."""
        return [
            f"PrologSlurmctld={self.folder / Hook.PROLOG_SLURMCTLD}",
            f"EpilogSlurmctld={self.folder / Hook.EPILOG_SLURMCTLD}",
            "PrologEpilogTimeout=30",
        ]

    def slurm_conf_of_nodes(self) -> list[str]:
        """Lines that may be added to slurm.conf, for a cluster without hooks on the head node."""
        return [f"Prolog={self.folder / Hook.PROLOG}", f"Epilog={self.folder / Hook.EPILOG}"]

    def _spools(self) -> list[Path]:
        return [self.spool / place for place in _PLACES]

    def _fallbacks(self) -> list[Path]:
        return [Path(f"{self.fallback}-{place}") for place in _PLACES]

    def _hook(self, hook: Hook, programs: dict[str, str]) -> str:
        place = "node" if hook.on_nodes else "ctld"
        more = {"HOOK": str(hook), "PLACE": place, "CLUSTER": self.cluster}
        return self._fill("hook.sh", {**programs, **more, "MOST_KEPT": str(MOST_KEPT), "REST_S": str(REST_S)})

    def _fill(self, template: str, names: dict[str, str]) -> str:
        folder = files("oakum_service.schedulers.slurm.hooks") / "scripts"
        text = "".join((folder / name).read_text(encoding="utf-8") for name in ("common.sh", template))
        places = {"CONFIG": str(self.config_file), "SPOOL": str(self.spool), "FALLBACK": str(self.fallback)}
        for name, value in {**names, **places}.items():
            text = text.replace(f"@{name}@", value)
        return text

    def _units(self, owner: str | None) -> tuple[str, str]:
        service = (
            "[Unit]\nDescription=Send what Slurm's hooks have kept for Oakum\n\n"
            "[Service]\nType=oneshot\n"
            f"# On nodes, where the hooks run as root: remove this line.\nUser={owner or 'slurm'}\n"
            f"ExecStart={self.folder / REPLAY}\nTimeoutStartSec=300\n"
        )
        timer = (
            "[Unit]\nDescription=Send what Slurm's hooks have kept for Oakum, every minute\n\n"
            "[Timer]\nOnBootSec=60\nOnUnitInactiveSec=60\n\n[Install]\nWantedBy=timers.target\n"
        )
        return service, timer


def read_token(config_file: Path) -> str | None:
    """The token of an earlier installation in the same folder, so that a new installation needs no new token;
    None if there is none."""
    try:
        match = re.search(
            r'^header = "Authorization: Bearer ([^"]+)"$', config_file.read_text("utf-8"), re.MULTILINE
        )
    except OSError:
        return None
    return match[1] if match else None


def _curl_config(url: str, token: str, ca_file: Path | None) -> str:
    if not _URL.fullmatch(url):
        raise ConfigurationError(f"address {url!r}: expected one such as http://head:8470: give it as --url")
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            "the token holds characters that no token has: give a file with the line that "
            "`oakum token create slurm-hooks --role hook` printed as --token-file"
        )
    if ca_file is not None and not _PLAIN_PATH.fullmatch(str(ca_file)):
        raise ConfigurationError(
            f"the file {str(ca_file)!r}: expected an absolute path of letters, digits and ._/+@-"
        )
    lines = [
        f'url = "{url.rstrip("/")}/v1/hooks/slurm"',
        f'header = "Authorization: Bearer {token}"',
        'header = "Content-Type: application/json"',
        # Without this, some versions of curl wait a second for permission to send a long body.
        'header = "Expect:"',
        'noproxy = "*"',
    ]
    if ca_file is not None:
        lines.append(f'cacert = "{ca_file}"')
    return "\n".join([*lines, ""])


def _find_programs() -> dict[str, str]:
    paths = {name: shutil.which(program, path=_WHERE) for name, program in _PROGRAMS.items()}
    if missing := [_PROGRAMS[name] for name, path in paths.items() if path is None]:
        raise ConfigurationError(f"the hooks need {', '.join(missing)}, in {_WHERE}: install curl and coreutils")
    logger = shutil.which("logger", path=_WHERE) or ""
    return {name: str(path) for name, path in paths.items()} | {"LOGGER": logger}
