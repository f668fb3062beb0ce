"""Where torch.compile keeps what it has compiled. Imports no torch."""

from __future__ import annotations

import getpass
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def compile_cache(environment: Mapping[str, str], fragment_folder: Path) -> Path:
    """The folder for ranks' compiled code: the one that the environment names, else the node's that torch itself
    would take, for later fragments find it there. Where that is not this account's alone, one in the fragment's.

    torch takes whatever folder is there, and runs the code in it; anybody may make one in `/tmp`.
    """
    if named := environment.get(VARIABLE):
        return Path(named)
    usual = Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"
    return usual if _is_ours(usual) else fragment_folder / "torchinductor"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return f"uid_{os.getuid()}"


def _is_ours(folder: Path) -> bool:
    """Whether the folder, which is made if it is missing, belongs to this account, which alone may write there."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
