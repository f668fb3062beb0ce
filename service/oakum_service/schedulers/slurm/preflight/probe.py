"""Run on a node, by Python alone: what a fragment would find there. Prints one line of JSON.

    python probe.py FOLDER TOKEN URL

FOLDER is the service's data directory, which should hold a file `check-TOKEN`; URL may be empty.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

_URL_TIMEOUT_S = 5.0


def _tried(attempt: Callable[[], str]) -> dict[str, str]:
    try:
        return {"found": attempt(), "error": ""}
    except Exception as error:
        return {"found": "", "error": f"{type(error).__name__}: {error}"}


def _read_folder(folder: Path, token: str) -> str:
    return (folder / f"check-{token}").read_text(encoding="utf-8").strip()


def _write_folder(folder: Path, token: str) -> str:
    reply = folder / f"check-{token}.reply"
    reply.write_text(token, encoding="utf-8")
    return reply.name


def _torch() -> str:
    import torch

    return f"{torch.__version__}, {torch.cuda.device_count()} GPUs"


def _worker() -> str:
    import oakum_worker

    return str(oakum_worker.__file__)


def _answer(url: str) -> str:
    with urllib.request.urlopen(f"{url}/healthz", timeout=_URL_TIMEOUT_S) as response:
        return str(response.status)


def main() -> None:
    """Try everything from this node, and print what came of it as JSON."""
    folder, token, url = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    found = {
        "read": _tried(lambda: _read_folder(folder, token)),
        "write": _tried(lambda: _write_folder(folder, token)),
        "worker": _tried(_worker),
        "torch": _tried(_torch),
        "url": _tried(lambda: _answer(url)) if url else None,
    }
    print(json.dumps({"token": token, "host": socket.gethostname(), **found}), flush=True)


if __name__ == "__main__":
    main()
