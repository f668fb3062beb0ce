"""Prints what `oakum serve` shows, and submits the trainers that it is given at the start."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from sqlalchemy import select

from oakum_service.config import Settings
from oakum_service.control.new_trainers import add_trainer
from oakum_service.db.models.trainers import Trainer
from oakum_service.identity import audit
from oakum_service.identity.tokens import LOCAL_ADMIN
from oakum_service.logs.format import begin_log
from oakum_service.schedulers.opening import entry_of
from oakum_service.schedulers.port import Scheduler
from oakum_service.server import OakumServer
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec, read_spec

_log = logging.getLogger("oakum.serve")
_log.setLevel(logging.INFO)


def serve_until_stopped(settings: Settings, specs: list[Path], *, verbose: bool) -> None:
    """Run the service in the foreground until it is stopped; the specs in `specs` are submitted at the start.
    Raises the errors of `OakumServer` and `read_spec`."""
    console = Console(stderr=True)
    as_json = settings.log_format == "json"
    begin_log(as_json=as_json, level=logging.INFO if verbose else logging.WARNING, console=console)
    begin_with = [read_spec(path) for path in specs]
    server = OakumServer(settings)
    states = [submit_once(server, spec) for spec in begin_with]
    ended = describe_ended(specs, begin_with, states)

    def announce() -> None:
        if as_json:
            _log.info("serves %s and watches %s", server.url, _describe(settings))
            return
        console.print(
            f"\n  [bold]Oakum[/bold] watches {_describe(settings)}\n\n"
            f"  Dashboard  [link]{server.url}/#token={server.token}[/link]\n"
            f"  API        {server.url}/v1   (OpenAPI at {server.url}/openapi.json)\n"
            f"  Token      {server.token}\n"
            f"  Commands   {_how_to_command(settings)}\n"
            f"{offer_demonstration(settings)}\n"
            f"{ended}"
            f"{_what_ctrl_c_does(server.scheduler)}\n",
            highlight=False,
            soft_wrap=True,
        )

    server.run(announce)
    if as_json:
        _log.info("%s", _what_goes_on(server.scheduler).strip())
    else:
        console.print(_what_goes_on(server.scheduler), highlight=False)


def _how_to_command(settings: Settings) -> str:
    """What to type in another terminal, where `oakum` may not be on PATH and the current folder may differ."""
    bin_dir = Path(sys.executable).parent
    activate = bin_dir / "activate"
    command = shutil.which("oakum")
    steps = []
    if activate.exists() and (command is None or Path(command).parent != bin_dir):
        steps.append(f"source {escape(shlex.quote(_from_here(activate)))}")
    steps.append("oakum ps")
    if settings.data_dir != Settings().data_dir:
        steps.append(f"(with OAKUM_DATA_DIR={escape(str(settings.data_dir.resolve()))})")
    return f"in another terminal: {'; '.join(steps)}"


def offer_demonstration(settings: Settings) -> str:
    """A line that offers the demonstration; empty where its examples are not here or no embedded cluster is."""
    if (
        not settings.scheduler_kind.is_embedded
        or settings.dry_run
        or not Path("examples/rbm-digits.yaml").is_file()
    ):
        return ""
    return "  Demo       oakum demo digits: draw a digit, and watch networks learn to recognise and to redraw it\n"


def _from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _what_ctrl_c_does(scheduler: Scheduler) -> str:
    if scheduler.ends_with_service:
        return "  Ctrl-C checkpoints every trainer and gives all nodes back."
    return "  Ctrl-C stops the service alone; `oakum hold` gives all nodes back."


def _what_goes_on(scheduler: Scheduler) -> str:
    if scheduler.ends_with_service:
        return "  Stopped; every trainer resumes at the next start."
    return (
        "  Stopped; fragments train on for two minutes, then save and leave, unless the service is started again."
    )


def _describe(settings: Settings) -> str:
    dry = " and only says what it would do" if settings.dry_run else ""
    return entry_of(settings.scheduler).describe(settings) + dry


def describe_ended(paths: list[Path], specs: list[TrainerSpec], states: list[TrainerState]) -> str:
    """Text on what to do if every trainer given with --submit has ended already; empty if one of them is live."""
    if not all(state.ended for state in states):
        return ""
    lines = [
        f"  {spec.name} is {state} already; `oakum submit {escape(shlex.quote(str(path)))}` starts one anew.\n"
        for path, spec, state in zip(paths, specs, states, strict=True)
    ]
    return "".join([*lines, "\n"]) if lines else ""


def submit_once(server: OakumServer, spec: TrainerSpec) -> TrainerState:
    """Submit a spec unless a trainer of its name was submitted before; returns the state of the newest such
    trainer."""
    with server.sessions.begin() as session:
        known = select(Trainer.state).where(Trainer.name == spec.name).order_by(Trainer.submitted_at.desc())
        if (state := session.execute(known.limit(1)).scalar_one_or_none()) is not None:
            return TrainerState(state)
        trainer = add_trainer(session, spec, LOCAL_ADMIN)
        audit.record(session, audit.local_actor(), "trainer.submitted", spec.name, LOCAL_ADMIN, id=trainer.id)
    return TrainerState.WAITING
