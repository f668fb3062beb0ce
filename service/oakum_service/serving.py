"""What `oakum serve` shows: logging, the address to open, the specs to begin with."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from sqlalchemy import select

from oakum_service.config import Settings
from oakum_service.control.submission import add_trainer
from oakum_service.db.models import Trainer
from oakum_service.server import LOCAL_ADMIN, OakumServer
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec, read_spec


def serve_until_stopped(settings: Settings, specs: list[Path], *, verbose: bool) -> None:
    """Run the service in the foreground. Raises the errors of `OakumServer` and `read_spec`."""
    console = Console(stderr=True)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(message)s",
        datefmt="[%X]",
        handlers=[RichHandler(console=console, show_path=False, omit_repeated_times=False)],
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    begin_with = [read_spec(path) for path in specs]
    server = OakumServer(settings)
    states = [submit_once(server, spec) for spec in begin_with]
    ended = describe_ended(specs, begin_with, states)

    def announce() -> None:
        console.print(
            f"\n  [bold]Oakum[/bold] watches {_describe(settings)}\n\n"
            f"  Dashboard  [link]{server.url}/#token={server.token}[/link]\n"
            f"  API        {server.url}/v1   (OpenAPI at {server.url}/openapi.json)\n"
            f"  Token      {server.token}\n\n"
            f"{ended}"
            f"{_what_ctrl_c_does(settings)}\n",
            highlight=False,
            soft_wrap=True,
        )

    server.run(announce)
    console.print(_what_goes_on(settings), highlight=False)


def _what_ctrl_c_does(settings: Settings) -> str:
    if settings.scheduler == "local":
        return "  Ctrl-C checkpoints every trainer and gives all nodes back."
    return "  Ctrl-C stops the service alone; `oakum hold` gives all nodes back."


def _what_goes_on(settings: Settings) -> str:
    if settings.scheduler == "local":
        return "  Stopped; every trainer resumes at the next start."
    return "  Stopped; fragments train on for two minutes, then save and leave, unless it is started again."


def _describe(settings: Settings) -> str:
    dry = " and only says what it would do" if settings.dry_run else ""
    return _describe_cluster(settings) + dry


def _describe_cluster(settings: Settings) -> str:
    if settings.scheduler == "slurm":
        return f"the nodes of Slurm's partition {settings.slurm.partition}"
    if settings.local.swf is not None:
        load = f"foreground jobs from {settings.local.swf}"
    else:
        load = f"a foreground load of {settings.local.load:.0%}"
    return f"an embedded cluster of {settings.local.nodes} nodes under {load}"


def describe_ended(paths: list[Path], specs: list[TrainerSpec], states: list[TrainerState]) -> str:
    """What to do when nothing is left to train; empty where something is."""
    if not all(state.ended for state in states):
        return ""
    lines = [
        f"  {spec.name} is {state} already; `oakum submit {escape(shlex.quote(str(path)))}` starts one anew.\n"
        for path, spec, state in zip(paths, specs, states, strict=True)
    ]
    return "".join([*lines, "\n"]) if lines else ""


def submit_once(server: OakumServer, spec: TrainerSpec) -> TrainerState:
    """Submit a spec unless a trainer of its name has been submitted before; returns the newest one's state."""
    with server.sessions.begin() as session:
        known = select(Trainer.state).where(Trainer.name == spec.name).order_by(Trainer.submitted_at.desc())
        if (state := session.execute(known.limit(1)).scalar_one_or_none()) is not None:
            return TrainerState(state)
        add_trainer(session, spec, LOCAL_ADMIN)
    return TrainerState.WAITING
