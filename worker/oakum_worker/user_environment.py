"""Which environment variables of the service reach users' code: all but Oakum's own and those that look like
secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_FOR_TRAINERS = frozenset({"OAKUM_FUSED_LOOPS"})
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSFILE|CREDENTIAL|(API|ACCESS|PRIVATE|ENCRYPTION|SIGNING)_?KEY"
    r"|(^|_)(AUTH|COOKIE|JWT|DSN|PASS|PAT|PW)(_|$)|_(KEY|PWD)$|BINDPW|CONNECTION_?STRING|PASSCOMMAND"
    r"|(DATABASE|DB|REDIS|BROKER|MONGO|POSTGRES|MYSQL)_?(URL|URI|PWD)",
    re.IGNORECASE,
)
_HARMLESS = frozenset({"TOKENIZERS_PARALLELISM"})
"""Looks like a secret's name and is a switch."""


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the service's environment that a fragment inherits."""
    dropped = set(withheld(environment))
    return {name: value for name, value in environment.items() if name not in dropped}


def withheld(names: Iterable[str]) -> list[str]:
    """Those of the variables that no fragment inherits: Oakum's settings, and those whose names say that
    they hold a secret, such as PGPASSWORD, HF_TOKEN or AWS_SECRET_ACCESS_KEY."""
    return [name for name in names if _is_withheld(name)]


def _is_withheld(name: str) -> bool:
    if name.startswith("OAKUM_"):
        return name not in _FOR_TRAINERS
    return name not in _HARMLESS and _SECRET.search(name) is not None
