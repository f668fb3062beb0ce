"""Runs a user's script as it is, in this process, with its session under a host."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

from oakum_worker.errors import SessionError, TaskError
from oakum_worker.randomness.counters import seed_everything
from oakum_worker.session.hosts import HOST, RankHost
from oakum_worker.spec import TrainerSpec


def run_script(spec: TrainerSpec, host: RankHost) -> None:
    """Run the spec's script from top to end, as `python script` would. Its folder is first on the
    import path, then the spec's workdir.

    Seeds the random generators from the spec first, so that every process builds the same initial weights. Raises
    `TaskError` where there is no script or it has no session, and whatever the script raises.
    """
    assert spec.script is not None
    file = (Path(spec.workdir or ".") / spec.script).resolve()
    if not file.is_file():
        raise TaskError(f"script {file} is not a file on this node: correct the spec's script or workdir")
    sys.path[:0] = list(dict.fromkeys((str(file.parent), str(Path(spec.workdir or ".").resolve()))))
    sys.argv = [str(file)]
    seed_everything(spec.seed)
    torch.manual_seed(spec.seed)
    token = HOST.set(host)
    try:
        try:
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise TaskError(f"script {file} ended itself with status {error.code}") from error
        for finish in host.finishing:
            finish()
    finally:
        HOST.reset(token)
    if not host.has_begun:
        raise SessionError(f"script {file} came to its end without oakum.session(...): put its loop in a session")
