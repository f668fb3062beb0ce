"""Checks whether the service would accept what the hooks send, with the hooks' own curl file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_TIMEOUT_S = 5.0
_NEW_TOKEN = (
    "make one with `oakum token create slurm-hooks --role hook`, and install again with it as --token-file"
)
_ADVICE = {
    "401": f"the service does not know the hooks' token: {_NEW_TOKEN}",
    "403": f"the hooks' token does not have the role hook: {_NEW_TOKEN}",
    "404": "the server that answers is not an Oakum service: check --url",
}


def try_to_post(config_file: Path) -> str:
    """Post an empty list of events; returns what went wrong and what to do, empty if nothing did."""
    if not config_file.is_file():
        return f"{config_file} does not exist: run `oakum hooks install`"
    curl = shutil.which("curl")
    if curl is None:
        return "there is no curl on this machine: install it"
    command = [curl, "-q", "-sS", "--config", str(config_file), "--max-time", str(_TIMEOUT_S)]
    command += ["--data-binary", '{"events":[]}', "-o", "/dev/null", "-w", "%{http_code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * _TIMEOUT_S, check=False)
    if done.returncode != 0:
        return done.stderr.strip() or f"curl failed with {done.returncode}"
    code = done.stdout.strip()
    return "" if code == "204" else f"it answers {code}: {_ADVICE.get(code, 'see its log')}"
