"""Pictures of the dashboard in all its states, light and dark, on screens and on a phone: `make screenshots`.

Starts a service of its own with the example trainers, lets history gather, and one that is empty. Draws each view
as it is, while it loads, without anything and without a service, and has axe read each. `index.html` beside the
pictures shows all of them, with what is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from api_under_test import ApiUnderTest
from dashboard_page import Server
from oakum_client.rest.client import OakumClient
from oakum_service.api.auth import Role
from oakum_service.db.engine import open_engine, upgrade
from oakum_service.states import TrainerState
from page_album import Album, Place, browser
from page_states import VIEWS, View

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("digits-classifier", "digits-autoencoder")
DEADLINE_S = 300.0
FURTHER = (
    View("overview-hour", "?span=3600&order=state", "#overview .trainer"),
    View("overview-dense", "?span=3600&show=dense", "canvas.density"),
)
"""Views of which one picture as they are is enough."""
DOCS = {"overview-full-light-1440.png": "dashboard.png", "trainer-full-light-1440.png": "trainer.png"}
"""Picture -> the one in the docs, which is its upper part."""
TOPS = {"overview-full-light-1440.png": "#trainers .trainer", "trainer-full-light-1440.png": "#view .node-use"}
"""What the upper parts end with: below begin further trainers, and a machine's own paths."""


def main() -> None:
    """Take the pictures that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "screenshots", help="where the pictures go")
    parser.add_argument("--history-s", type=float, default=120.0, help="seconds of training before the first one")
    parser.add_argument("--only", default="", metavar="NAMES", help="views to draw, with commas between them")
    parser.add_argument("--docs", action="store_true", help="renew the pictures of the README and the docs, too")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    chosen = [view for view in VIEWS if not only or view.name in only]
    with browser() as driver:
        album = Album(driver, given.folder, TOPS)
        with running_service() as client:
            plan = gather(client, given.history_s)
            place = Place(client.address.url, client.address.token or "", EXAMPLES[0], plan)
            if not only or "sign-in" in only:
                album.draw_sign_in(place)
            for view in chosen:
                album.draw_states(place, view)
            for view in FURTHER:
                if not only or view.name in only:
                    album.draw_full(place, view)
        with empty_service() as place:
            for view in chosen:
                if view.empty is not None:
                    album.draw_empty(place, view)
    album.write_index()
    if given.docs:
        for picture, name in DOCS.items():
            shutil.copyfile(given.folder / f"top-{picture}", ROOT / "docs" / "images" / name)
    for line in album.faults:
        print(line)
    sys.exit(1 if album.faults else 0)


@contextmanager
def running_service() -> Iterator[OakumClient]:
    """A service on four virtual nodes with the example trainers and a foreground load; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="oakum-screenshots-"))
    command = [sys.executable, "-m", "oakum", "serve", "--data-dir", str(folder), "--port", "0"]
    for example in EXAMPLES:
        command += ["--submit", f"examples/{example}.yaml"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        wait_for("the service", lambda: (folder / "client.json").exists())
        found = json.loads((folder / "client.json").read_text(encoding="utf-8"))
        client = OakumClient(url=found["url"], token=found["token"])
        wait_for("an answer", lambda: answers(client))
        yield client
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder)


@contextmanager
def empty_service() -> Iterator[Place]:
    """A service whose database has a schema and nothing else, without a controller."""
    folder = Path(tempfile.mkdtemp(prefix="oakum-screenshots-"))
    engine = open_engine(f"sqlite:///{folder}/oakum.db")
    upgrade(engine)
    engine.dispose()
    api = ApiUnderTest(folder)
    server = Server()
    server.app = api.app
    try:
        yield Place(server.url.rstrip("/"), api.new_token("anna", Role.ADMIN), "", 0)
    finally:
        api.news_for_readers.close()
        server.stop()
        shutil.rmtree(folder)


def answers(client: OakumClient) -> bool:
    """Whether the service answers."""
    try:
        client.cluster()
    except Exception:
        return False
    return True


def gather(client: OakumClient, history_s: float) -> int:
    """Wait until the trainers train and some history is there. Returns a plan that differs from the one before."""
    wait_for("a trainer trains", lambda: client.trainer(EXAMPLES[0]).state is TrainerState.RUNNING)
    time.sleep(history_s)
    return next(plan.id for plan in client.plans().plans if plan.parent and plan.allocations)


def wait_for(what: str, probe: Callable[[], object]) -> None:
    """Return once `probe` returns something true. Raises `TimeoutError` after 300 s."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not probe():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
