"""The `oakum` command: the REST API for people, and what an admin runs on the login node.

One module for each group of commands; importing it registers the commands on `app`. Slow imports (httpx, pydantic,
FastAPI, SQLAlchemy) happen inside the commands that use them, so that `oakum --help` is instant. Commands take no
decisions: they call the service and show its answer.
"""

from __future__ import annotations

import importlib
import sys

_COMMAND_MODULES = (
    "submit",
    "trainers",
    "annotate",
    "pause",
    "wait",
    "logs",
    "metrics",
    "export",
    "demo",
    "cluster",
    "what_if",
    "hold",
    "events",
    "notices",
    "replay",
    "forecast",
    "run_as",
    "serve",
    "config",
    "admin",
    "audit",
    "quota",
    "ledger",
    "hooks",
    "collect",
    "check",
    "profile",
    "profile_layout",
    "profile_rnn",
    "profile_micro_batch",
    "advise",
)


def main() -> None:
    """Entry point of the console script."""
    try:
        from oakum_client.cli.app import run

        load_commands()
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run())


def load_commands() -> None:
    """Register every command, in the order of the help page."""
    for name in _COMMAND_MODULES:
        importlib.import_module(f"oakum_client.cli.{name}")
