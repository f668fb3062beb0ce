"""`oakum submit` and `oakum try`: read specs, try them out on this machine, and submit them."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, print_json
from oakum_client.cli.trying import CheckList, NoDisplay, TryDisplay, TryResult, try_spec
from oakum_client.cli.units import parse_duration
from oakum_service.scheduler_table import is_embedded

if TYPE_CHECKING:
    from oakum_client.rest.client import OakumClient
    from oakum_service.api.schemas.trainers import TrainerView
    from oakum_worker.spec import TrainerSpec

Specs = Annotated[
    list[Path], typer.Argument(metavar="SPEC...", help="Trainer specs, YAML or JSON.", show_default=False)
]
LimitOption = Annotated[
    str, typer.Option("--check-limit", metavar="TIME", help="Time limit for each check of the try.")
]
_HERE = ("localhost", "127.0.0.1", "::1")


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example("oakum submit digits.yaml", "oakum submit a.yaml b.yaml", "oakum submit digits.yaml --dry-run"),
)
def submit(
    specs: Specs,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch the trainer until it ends.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the plan would be with the trainer; submit nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Try the trainer on this machine before submitting it.")
    ] = True,
    check_limit: LimitOption = "60s",
    begin_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TRAINER[/STEP|/best]",
            help="Begin from a checkpoint of this trainer, which has ended; without a step from the newest.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Try trainers out on this machine, in seconds, and submit them.

    All specs are read, checked by the service and tried before any is submitted; if one fails, none is submitted.
    With --follow the exit code says how the trainer ended: 0 finished, 1 failed, 3 diverged, 4 cancelled.
    """
    if follow and len(specs) > 1:
        raise typer.BadParameter("--follow takes one spec: `oakum wait NAME...` waits for several trainers")
    if begin_from is not None and len(specs) > 1:
        raise typer.BadParameter("--from takes one spec")
    limit_s = parse_duration(check_limit)
    documents = read_all(specs)
    with connect() as client:
        refuse_unacceptable(client, documents, begin_from)
        _warn_of_bounds(documents)
        state_folder = None if begin_from is None else _local_folder(client, begin_from)
        trials = [TryResult(left_out="") for _ in documents]
        if check:
            trials = _try_all(client, documents, limit_s, _try_display(as_json=as_json), state_folder)
        if dry_run:
            from oakum_client.cli.dry_run import show_plans

            show_plans(client, list(zip(documents.values(), trials, strict=True)), as_json=as_json)
            return
        _submit_all(client, documents, begin_from, follow=follow, as_json=as_json)


def read_all(paths: list[Path]) -> dict[Path, TrainerSpec]:
    """Read all spec files; returns file -> spec. Raises `CommandError` with everything that is wrong in any of
    them, also names that occur twice."""
    from oakum_worker.errors import SpecError
    from oakum_worker.spec import read_spec

    documents: dict[Path, TrainerSpec] = {}
    faults = []
    for path in paths:
        try:
            documents[path] = read_spec(path)
        except SpecError as error:
            faults.append(str(error))
    names = Counter(document.name for document in documents.values())
    faults += [
        f"{number} specs have the name {name!r}: names are unique" for name, number in names.items() if number > 1
    ]
    if faults:
        raise CommandError("\n".join(faults))
    return documents


def refuse_unacceptable(
    client: OakumClient, documents: dict[Path, TrainerSpec], begin_from: str | None = None
) -> None:
    """Raise `CommandError` where the service would refuse a spec, before time goes into trying it out.

    So what only the service knows, such as the names in use and the hosts that it notifies, is known of all specs
    before one is submitted.
    """
    from oakum_client.rest.errors import ApiError

    refusals = []
    for path, spec in documents.items():
        try:
            client.check(spec, begin_from)
        except ApiError as error:
            refusals.append(f"{path}: {error}")
    if refusals:
        raise CommandError("\n".join([*refusals, "Nothing was submitted."]))


def _local_folder(client: OakumClient, begin_from: str) -> Path | None:
    """The folder of the checkpoint to begin from, or of all of a trainer's, of which the newest is taken; None
    where it is not on this machine."""
    from oakum_service.control.new_trainers import step_to_begin_from
    from oakum_worker.checkpoint.folder_names import folder_name
    from oakum_worker.checkpoint.folders import CheckpointFolders

    trainer, _, at = begin_from.partition("/")
    folder = Path(client.trainer(trainer).checkpoint_folder)
    if not folder.is_dir():
        return None
    step = step_to_begin_from(at, lambda: CheckpointFolders(folder.parent).best_step(folder.name))
    return folder if step is None else folder / folder_name(step)


def _try_display(*, as_json: bool) -> TryDisplay:
    if as_json:
        return NoDisplay()
    from rich.console import Console

    return CheckList(Console(stderr=True, markup=False, highlight=False, emoji=False))


def _try_all(
    client: OakumClient,
    documents: dict[Path, TrainerSpec],
    limit_s: float,
    view: TryDisplay,
    state_folder: Path | None,
) -> list[TryResult]:
    try:
        return [_try(client, path, document, limit_s, view, state_folder) for path, document in documents.items()]
    except KeyboardInterrupt:
        typer.echo("Interrupted: nothing was submitted.", err=True)
        raise


def _try(
    client: OakumClient, path: Path, spec: TrainerSpec, limit_s: float, view: TryDisplay, state_folder: Path | None
) -> TryResult:
    """Try one spec out on this machine, and print remarks. What cannot be tried because it is only on the
    service's machine is left out. Raises `CommandError` if the trainer would also fail on the nodes. Returns
    what the try found."""
    elsewhere = not _is_local(client.address.url)
    folder = spec.workdir
    if elsewhere and folder is not None and not Path(folder).is_dir():
        trial = TryResult(left_out=f"workdir {folder} is not on this machine, and the service runs on another")
    else:
        typer.echo(f"Trying {path}:", err=True)
        state = {} if state_folder is None else {"state_folder": state_folder}
        trial = try_spec(path, limit_s, view, **state)
    module = spec.entrypoint.split(":")[0].split(".")[0]
    if elsewhere and trial.lacks == module:
        trial = TryResult(left_out=f"{trial.failure}; the service runs on another machine, which may have it")
    if trial.failure is not None:
        raise CommandError(f"{path}: {trial.failure}\nNothing was submitted; --no-check submits without a try.")
    _print_remarks(client, path, trial, elsewhere=elsewhere)
    return trial


def _warn_of_bounds(documents: dict[Path, TrainerSpec]) -> None:
    """Say on stderr where a spec's own curve speaks against its bounds."""
    from oakum_client.cli.advising.choice import bounds_warning

    for path, spec in documents.items():
        if (warning := bounds_warning(spec)) is not None:
            typer.echo(f"warning: {path}: {warning}", err=True)


def _print_remarks(client: OakumClient, path: Path, trial: TryResult, *, elsewhere: bool) -> None:
    if trial.left_out is not None:
        typer.echo(f"{path} was not tried: {trial.left_out}.", err=True)
    for remark in trial.facts.get("remarks", ()):
        typer.echo(f"note: {remark}", err=True)
    if (complaint := trial.facts.get("memory_complaint")) is None:
        return
    if not elsewhere and is_embedded(client.cluster().scheduler):  # Its nodes are this machine.
        raise CommandError(f"{path}: {complaint}\nNothing was submitted; --no-check submits without a try.")
    typer.echo(f"note: {complaint}, unless the nodes have more", err=True)


def _is_local(url: str) -> bool:
    """Whether the service runs on this machine, as far as its address tells."""
    if url.startswith("unix:"):
        return True
    host = urlsplit(url).hostname or ""
    return host in _HERE or host.startswith("127.") or host in (socket.gethostname(), socket.getfqdn())


def _submit_all(
    client: OakumClient,
    specs: dict[Path, TrainerSpec],
    begin_from: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    from oakum_client.rest.errors import ClientError
    from oakum_service.api.schemas.trainers import TrainerList

    submitted: list[TrainerView] = []
    for path, spec in specs.items():
        try:
            submitted.append(client.submit(spec, begin_from=begin_from))
        except ClientError as error:
            before = f"; submitted before: {', '.join(view.name for view in submitted)}" if submitted else ""
            raise CommandError(f"{path}: {error}{before}") from error
        if not as_json:
            _print_submission(submitted[-1])
    if as_json and len(specs) > 1:
        print_json(TrainerList(trainers=submitted))
    elif as_json:
        print_json(submitted[0], indent=None if follow else 2)
    if follow:
        from oakum_client.cli.watch import watch_trainer

        raise typer.Exit(watch_trainer(client, submitted[0].id, as_json=as_json))


def _print_submission(trainer: TrainerView) -> None:
    typer.echo(
        f"Submitted {trainer.name} ({trainer.id}). It trains whether or not anyone watches: "
        f"`oakum show {trainer.name}`."
    )


@app.command(
    "try", rich_help_panel=TRAINERS, epilog=example("oakum try digits.yaml", "oakum try digits.yaml --json")
)
def try_command(specs: Specs, check_limit: LimitOption = "60s", as_json: JsonFlag = False) -> None:
    """Try trainers out on this machine, in seconds, without a service.

    A try imports and builds the task, reads samples, computes loss and gradients of two samples, and estimates the
    memory that a node needs. It writes nothing, and Ctrl-C ends it. Exit code 1 means that a trainer would fail.
    """
    limit_s = parse_duration(check_limit)
    failed = False
    results = {}
    for path in read_all(specs):
        if not as_json:
            typer.echo(f"Trying {path}:", err=True)
        trial = try_spec(path, limit_s, _try_display(as_json=as_json))
        failed |= trial.failure is not None or trial.left_out is not None
        results[str(path)] = trial.document()
        if not as_json:
            _print_trial(path, trial)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    raise typer.Exit(int(failed))


def _print_trial(path: Path, trial: TryResult) -> None:
    facts = trial.facts
    for remark in (*facts.get("remarks", ()), facts.get("memory_complaint")):
        if remark is not None:
            typer.echo(f"note: {remark}", err=True)
    if trial.failure is not None or trial.left_out is not None:
        typer.echo(f"oakum: {path}: {trial.failure or trial.left_out}", err=True)
    else:
        typer.echo(f"{path} would train: the try found nothing that prevents it.")
