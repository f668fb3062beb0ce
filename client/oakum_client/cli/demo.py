"""`oakum demo digits`: draw digits, and see the networks that recognise and encode them while they train."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import stat
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_worker.errors import reason_of

if TYPE_CHECKING:
    from oakum_client.demo.chain import DemoRole, TrainerChain
    from oakum_client.demo.follower import Follower

_CHECKOUT = Path(__file__).resolve().parents[3] / "examples"

demo_app = typer.Typer(help="Pages to show and to try, with networks that Oakum trains.", no_args_is_help=True)
app.add_typer(demo_app, name="demo", rich_help_panel=TRAINERS)


@demo_app.callback()
def _demo() -> None:
    pass


@demo_app.command(
    "digits",
    epilog=example(
        "oakum demo digits",
        "oakum demo digits --anew",
        "oakum demo digits --host 0.0.0.0 --no-browser",
        "oakum demo digits --recogniser FOLDER --autoencoder FOLDER",
    ),
)
def digits(
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where rbm-digits.yaml and its package lie.",
            show_default="./examples, or the checkout's",
        ),
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Train anew what has ended, and watch it.")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Of fine-tuning, of trainers that are submitted.")] = 300,
    recogniser: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Show these checkpoints; needs no service.")
    ] = None,
    autoencoder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Show these checkpoints; needs no service.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets phones in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 for any free one.")] = 8480,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page if there is a screen.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page's address as JSON.")] = False,
) -> None:
    """Draw a digit in the browser, and see it recognised, encoded and redrawn by networks that train meanwhile.

    Submits a stack of Boltzmann machines and, once it is trained, a recogniser and an autoencoder that begin from
    its weights; takes those that are there already. The page needs no token and changes nothing. Ctrl-C ends the
    page, and the trainers train on.
    """
    if importlib.util.find_spec("torch") is None:
        raise CommandError(
            "torch is not installed where `oakum` runs, and checkpoints have to be read: "
            "run pip install '.[worker]' in Oakum's checkout"
        )
    from oakum_client.demo.chain import DemoRole
    from oakum_client.demo.follower import Follower
    from oakum_client.demo.pages import listen

    options = {DemoRole.RECOGNISER: recogniser, DemoRole.AUTOENCODER: autoencoder}
    folders = {role: folder for role, folder in options.items() if folder is not None}
    chain = None
    if folders:
        _check_checkpoints(folders)
    else:
        chain = _open_chain(examples, epochs, anew=anew)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise CommandError(
            f"{host}:{port} cannot be listened on ({reason_of(error)}): --port 0 takes any free port"
        ) from error
    url = f"http://{_host_in_url(host)}:{listening.getsockname()[1]}/"
    with listening:
        if chain is None:
            _serve(Follower(None, None, folders), listening, url, browser=browser, as_json=as_json)
            return
        with connect() as client:
            chain.turn(client)  # What is wrong is told here, before there is a page.
            _serve(Follower(client, chain), listening, url, browser=browser, as_json=as_json)


def _check_checkpoints(folders: dict[DemoRole, Path]) -> None:
    """Raise `CommandError` if a given folder has no checkpoint for its role."""
    from oakum_client.demo.networks import read_network
    from oakum_worker.errors import CheckpointError

    for role, folder in folders.items():
        try:
            read_network(role, folder)
        except CheckpointError as error:
            raise CommandError(str(error)) from error


def _open_chain(examples: Path | None, epochs: int, *, anew: bool) -> TrainerChain:
    from oakum_client.demo.chain import SPECS, DemoRole, TrainerChain, read_specs
    from oakum_worker.errors import SpecError

    places = [Path("examples"), _CHECKOUT] if examples is None else [examples]
    folder = next((place for place in places if (place / SPECS[DemoRole.STACK]).is_file()), None)
    if folder is None:
        raise CommandError(
            f"{SPECS[DemoRole.STACK]} is not in {' or '.join(map(str, places))}: name Oakum's folder of "
            "examples with "
            "--examples, or show checkpoints with --recogniser and --autoencoder"
        )
    if examples is None and folder is places[0] and (stranger := _stranger(folder.stat())):
        raise CommandError(
            f"./{folder} is not run unasked: {stranger}, and its code would run for you: if you trust it, say "
            f"--examples {folder}; else work in another folder"
        )
    try:
        return TrainerChain(read_specs(folder, epochs), anew=anew)
    except SpecError as error:
        raise CommandError(str(error)) from error


def _stranger(state: os.stat_result) -> str | None:
    """Who may have written the examples beside those whose code runs for this account anyway: itself, root, and
    the owner of Oakum's code; None if nobody. With whom the account shares a checkout of its own is its choice."""
    from oakum_service.files import owners

    is_own = state.st_uid == os.geteuid() and not state.st_mode & stat.S_IWOTH
    return None if is_own else owners.stranger(state, trusted=(_owner_of_code(),))


def _owner_of_code() -> int:
    return Path(__file__).stat().st_uid


def _serve(follower: Follower, listening: socket.socket, url: str, *, browser: bool, as_json: bool) -> None:
    from oakum_client.demo.pages import serve_demo

    def announce() -> None:
        if as_json:
            typer.echo(json.dumps({"url": url}))
        else:
            typer.echo(f"Draw digits at {url}\nCtrl-C ends the page; trainers train on.")
        if browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(url)

    serve_demo(follower, listening, announce)


def _host_in_url(host: str) -> str:
    """The name of the host as it is written in an address for a browser."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
