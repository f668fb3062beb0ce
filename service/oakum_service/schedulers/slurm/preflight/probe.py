"""Run on a node with Python alone: reports what a fragment would find there, as one line of JSON.

    python probe.py FOLDER TOKEN URL AUTHORITIES LAUNCHER

FOLDER is the service's data directory, which should hold a file `check-TOKEN`; URL may be empty. AUTHORITIES is
the PEM text of the certificates to trust; empty: the system's. LAUNCHER is the path of the launcher that enters
users' accounts; empty: none is needed.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
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


def _answer(url: str, authorities: str) -> str:
    trusted = ssl.create_default_context(cadata=authorities or None)
    with urllib.request.urlopen(f"{url}/healthz", timeout=_URL_TIMEOUT_S, context=trusted) as response:
        return str(response.status)


def _launch(launcher: str) -> str:
    done = subprocess.run(["sudo", "-n", "--", launcher, "check"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}")
    return str(json.loads(done.stdout)["spool"])


def main() -> None:
    """Try everything on this node and print the results as JSON."""
    folder, token, url, authorities, launcher = Path(sys.argv[1]), *sys.argv[2:6]
    found = {
        "read": _tried(lambda: _read_folder(folder, token)),
        "write": _tried(lambda: _write_folder(folder, token)),
        "worker": _tried(_worker),
        "torch": _tried(_torch),
        "url": _tried(lambda: _answer(url, authorities)) if url else None,
        "launcher": _tried(lambda: _launch(launcher)) if launcher else None,
    }
    job = os.environ.get("SLURM_JOB_ID")
    print(json.dumps({"token": token, "job": job, "host": socket.gethostname(), **found}), flush=True)


if __name__ == "__main__":
    main()
