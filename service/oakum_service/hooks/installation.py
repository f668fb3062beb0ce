"""The hooks as files on the head node and the nodes, and the lines of slurm.conf that name them."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from oakum_service.control.hook_report import Hook
from oakum_service.errors import ConfigurationError

DEFAULT_SPOOL = Path("/var/spool/oakum")
DEFAULT_FALLBACK = Path("/dev/shm/oakum-hooks")
MOST_KEPT = 10_000
"""Events that one folder of a spool keeps; beyond them the oldest go."""
REST_S = 30
CONFIG = "curl.conf"
REPLAY = "replay"
UNITS = ("oakum-hooks-replay.service", "oakum-hooks-replay.timer")
_PLACES = ("ctld", "node")
"""Where hooks run, as different users; each has a folder of its own in the spool."""
_PROGRAMS = {"CURL": "curl", "TIMEOUT": "timeout", "DATE": "date", "MKDIR": "mkdir", "MV": "mv", "RM": "rm"}
_WHERE = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@-]*")
_URL = re.compile(r"https?://[A-Za-z0-9_.:/\[\]~-]+")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")
_CLUSTER = re.compile(r"[A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Installation:
    """Hooks in a folder of the head node, and of every node where the node hooks are wanted."""

    folder: Path
    spool: Path = DEFAULT_SPOOL
    fallback: Path = DEFAULT_FALLBACK
    """Begins the names of the folders in memory that are used when the spool cannot be."""
    cluster: str = ""
    """For versions of Slurm that do not tell a node's hooks."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for what cannot stand in a script without quoting."""
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
        """For curl: the address and the token."""
        return self.folder / CONFIG

    def install(self, url: str, token: str, owner: str | None) -> list[str]:
        """Write everything, each file at once over the one before; returns what is left for the admin to do.

        `owner` is SlurmUser, who runs the hooks of the head node. Raises `ConfigurationError` where a program is
        missing, a value cannot be written so, or a folder cannot be made.
        """
        contents = {self.config_file: (_curl_config(url, token), 0o600)}
        programs = _find_programs()
        for hook in Hook:
            contents[self.folder / hook] = (self._hook(hook, programs), 0o755)
        contents[self.folder / REPLAY] = (self._fill("replay.sh", programs), 0o755)
        for unit, text in zip(UNITS, self._units(owner), strict=True):
            contents[self.folder / unit] = (text, 0o644)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            for file, (text, mode) in contents.items():
                _replace(file, text, mode)
            # SlurmUser has to pass through it.
            self.spool.mkdir(parents=True, exist_ok=True, mode=0o755)
            for folder in self._spools():
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{error.filename}: {error.strerror}: choose a --dir and a --spool that this user may write"
            ) from error
        return self._give(owner)

    def _give(self, owner: str | None) -> list[str]:
        """Let the owner have what it needs; returns the commands where this user may not do so."""
        needed = [self.config_file, self.spool / "ctld"]
        try:
            user = pwd.getpwnam(owner or "")
            for path in needed:
                os.chown(path, user.pw_uid, user.pw_gid)
        except (KeyError, PermissionError):
            return [f"chown {owner or 'SLURMUSER'}: {' '.join(map(str, needed))}"]
        return []

    def uninstall(self) -> int:
        """Remove what `install` wrote; a spool with events in it stays. Returns how many events these are."""
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
        """Events that wait to be replayed on this machine."""
        return sum(len(list(folder.glob("*.json"))) for folder in (*self._spools(), *self._fallbacks()))

    def slurm_conf(self) -> list[str]:
        """The lines for slurm.conf that are needed."""
        return [
            f"PrologSlurmctld={self.folder / Hook.PROLOG_SLURMCTLD}",
            f"EpilogSlurmctld={self.folder / Hook.EPILOG_SLURMCTLD}",
            "PrologEpilogTimeout=30",
        ]

    def slurm_conf_of_nodes(self) -> list[str]:
        """Those that may be added, for a cluster without the hooks of the head node."""
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
        folder = files("oakum_service.hooks") / "scripts"
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
    """The token of an installation, so that another one of the same folder needs no new one."""
    try:
        found = re.search(
            r'^header = "Authorization: Bearer ([^"]+)"$', config_file.read_text("utf-8"), re.MULTILINE
        )
    except OSError:
        return None
    return found[1] if found else None


def _curl_config(url: str, token: str) -> str:
    if not _URL.fullmatch(url):
        raise ConfigurationError(f"address {url!r}: expected one such as http://head:8470: give it as --url")
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            "the token holds characters that no token has: give a file with the line that "
            "`oakum token create slurm-hooks --role hook` printed as --token-file"
        )
    lines = [
        f'url = "{url.rstrip("/")}/v1/hooks/slurm"',
        f'header = "Authorization: Bearer {token}"',
        'header = "Content-Type: application/json"',
        # Else some versions of curl wait a second for leave to send a long body.
        'header = "Expect:"',
        'noproxy = "*"',
    ]
    return "\n".join([*lines, ""])


def _find_programs() -> dict[str, str]:
    found = {name: shutil.which(program, path=_WHERE) for name, program in _PROGRAMS.items()}
    if missing := [_PROGRAMS[name] for name, path in found.items() if path is None]:
        raise ConfigurationError(f"the hooks need {', '.join(missing)}, in {_WHERE}: install curl and coreutils")
    logger = shutil.which("logger", path=_WHERE) or ""
    return {name: str(path) for name, path in found.items()} | {"LOGGER": logger}


def _replace(file: Path, text: str, mode: int) -> None:
    """Put the file there whole: Slurm may run it at any moment."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(temporary).replace(file)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
