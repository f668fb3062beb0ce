"""Oakum's names for scripts: `oakum.session`, a training loop of one's own, and `oakum.Client`, the service from
Python.

This package is a face over the others: it imports client and worker, late, and neither imports it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oakum_client.python_client import Client
    from oakum_worker.session.session import Session, session

__all__ = ["Client", "Session", "session"]

_HOMES = {
    "Client": "oakum_client.python_client",
    "Session": "oakum_worker.session.session",
    "session": "oakum_worker.session.session",
}


def __getattr__(name: str) -> Any:
    # Late, because the session needs torch and the client does not: whoever imports one may lack the other's.
    if name not in _HOMES:
        raise AttributeError(f"module 'oakum' has no {name!r}: it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
