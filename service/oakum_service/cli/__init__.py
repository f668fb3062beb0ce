"""The `oakum` command: the REST API for people, and what an admin runs on the login node.

One module for each group of commands; importing it puts them on `app`. What takes long to import (httpx,
pydantic, FastAPI, SQLAlchemy) is imported inside the commands that use it, so that `oakum --help` is instant.
Nothing here decides anything: commands call the service and show what it says.
"""

from __future__ import annotations

import importlib
import sys

_COMMAND_MODULES = (
    "trainers",
    "logs",
    "cluster",
    "hold",
    "events",
    "replay",
    "serve",
    "admin",
    "hooks",
    "collect",
    "check",
    "profile",
    "profile_layout",
    "profile_micro_batch",
)


def main() -> None:
    """The console script."""
    from oakum_service.cli.app import run

    load_commands()
    sys.exit(run())


def load_commands() -> None:
    """Put every command on the app, in the order of the help page."""
    for name in _COMMAND_MODULES:
        importlib.import_module(f"oakum_service.cli.{name}")
