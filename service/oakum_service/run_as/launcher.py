#!/usr/bin/python3 -I
"""Runs one of Oakum's programs in a user's Unix account.

The service's account may call this as root, by one rule of sudo; nothing else of Oakum's runs as root. Callers
choose the account and one of `PROGRAMS`; command line and environment come from the configuration alone. The
program reads its request from stdin.

    run-as fragment --account alice      the agent of a fragment, whose config is on stdin
    run-as checkpoints --account alice   answers a question about the checkpoints of alice's trainers
    run-as check [--account alice]       tells whether the installation is in order, and alice may run code

Refused are root, accounts with ids below `least_uid`, and those in `refused`. It needs Python 3.8 and nothing
else."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any, Sequence  # noqa: UP035  # subscripts of collections.abc need Python 3.9

CONFIG = "/etc/oakum/run-as.json"
PROGRAMS = {
    "check": None,
    "checkpoints": "oakum_worker.checkpoint.in_account",
    "fragment": "oakum_worker.payload",
}
REFUSED = 77
"""Exit status for an account that runs no code here (EX_NOPERM)."""
WRONG = 78
"""Exit status for an installation that is not in order (EX_CONFIG)."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,62}")
_WANTED = {"python": str, "spool": str, "least_uid": int, "refused": list, "environment": dict}
_PATH = "/usr/local/bin:/usr/bin:/bin"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class RefusedError(Exception):
    """The account may not run code here."""


class InstallationError(Exception):
    """The installation is not in order, so root must not act on it."""


def main(arguments: Sequence[str]) -> int:
    """Become the account, and replace this process by the program. Returns the exit status of `check`, and where
    that does not succeed."""
    options = parse(arguments)
    try:
        config = read_config(Path(CONFIG))
        if options.account is None:
            refuse_changeable(Path(config["spool"]), Path(config["spool"]).lstat())
            print(json.dumps({"python": config["python"], "spool": config["spool"]}))
            return 0
        account = allowed(options.account, config)
        folder = own_folder(Path(config["spool"]), account)
        program = PROGRAMS[options.program]
        if program is None:
            print(json.dumps({"account": account.pw_name, "uid": account.pw_uid, "folder": str(folder)}))
            return 0
        become(account)
        start(program, account, folder, config)
    except RefusedError as error:
        print(f"run-as: {error}", file=sys.stderr)
        return REFUSED
    except (InstallationError, OSError) as error:
        print(f"run-as: {error}", file=sys.stderr)
    return WRONG


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command line; ends the process with status 2 where they are wrong."""
    parser = argparse.ArgumentParser(prog="run-as", description="Runs Oakum's programs in users' Unix accounts.")
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--account", metavar="NAME", help="the account to run the program in")
    options = parser.parse_args(arguments)
    if options.account is None and options.program != "check":
        parser.error(f"{options.program} needs --account")
    return options


def read_config(file: Path) -> dict[str, Any]:
    """The configuration. Raises `InstallationError` if others than root may change it, or it is not complete."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        refuse_changeable(file, os.fstat(descriptor))
        try:
            config = json.load(stream)
        except ValueError as error:
            raise InstallationError(f"{file} is no JSON: {error}") from error
    for name, kind in _WANTED.items():
        if not isinstance(config, dict) or not isinstance(config.get(name), kind):
            raise InstallationError(f"{file} has no {name} ({kind.__name__}): install the launcher again")
    for name in ("python", "spool"):
        if not Path(config[name]).is_absolute():
            raise InstallationError(f"{file}: {name} is {config[name]!r}, expected an absolute path")
    complete: dict[str, Any] = config
    return complete


def refuse_changeable(path: Path, status: os.stat_result) -> None:
    """Raise `InstallationError` where others than root may change the file or folder at the path."""
    if status.st_uid != 0 or status.st_mode & _WRITABLE_BY_OTHERS:
        raise InstallationError(f"{path} has to belong to root, and to be writable by root alone")


def allowed(name: str, config: dict[str, Any]) -> pwd.struct_passwd:
    """The account's entry in the user database. Raises `RefusedError` for an account that may not run code."""
    if not _NAME.fullmatch(name):
        raise RefusedError(f"{name!r} is no name of an account")
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise RefusedError(f"there is no account {name!r} on this machine") from None
    if 0 in (account.pw_uid, account.pw_gid) or account.pw_uid < config["least_uid"]:
        raise RefusedError(f"{name} (uid {account.pw_uid}) is a system account")
    # One account may be found under several names.
    if {name, account.pw_name}.intersection(config["refused"]) or account.pw_name != name:
        raise RefusedError(f"{name} is an account that the configuration refuses")
    return account


def own_folder(spool: Path, account: pwd.struct_passwd) -> Path:
    """The account's folder in the spool, made if it is missing. Raises `InstallationError` if others than root may
    change the spool, or others than the account may enter the folder."""
    refuse_changeable(spool, spool.lstat())
    folder = spool / account.pw_name
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, account.pw_uid, account.pw_gid, follow_symlinks=False)
    except FileExistsError:
        pass
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != account.pw_uid or status.st_mode & 0o077:
        raise InstallationError(f"{folder} has to be {account.pw_name}'s, closed to everybody else (mode 0700)")
    return folder


def become(account: pwd.struct_passwd) -> None:
    """Give up root's rights for the account's, for good."""
    uid, gid = account.pw_uid, account.pw_gid
    os.initgroups(account.pw_name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise InstallationError(f"this process did not become {account.pw_name}")
    os.umask(0o077)


def start(program: str, account: pwd.struct_passwd, folder: Path, config: dict[str, Any]) -> None:
    """Replace this process by the program. Raises `OSError` if it cannot be started."""
    environment = {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        **config["environment"],
        "OAKUM_ACCOUNT_FOLDER": str(folder),
    }
    os.chdir(folder)
    os.closerange(3, 4096)
    # Python ignores SIGPIPE, and a program inherits what is ignored.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # -P: modules in the working folder do not take the place of Python's own.
    os.execve(config["python"], [config["python"], "-P", "-m", program], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
