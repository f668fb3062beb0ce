"""Hooks that wait for a service on a machine that is busy with many tests.

The hooks' own limits of 2 seconds in all, and what becomes of events where these pass, have tests of their own.
The others are of what a service that answers is told, and would fail where it only answers late.
"""

from __future__ import annotations

import re

from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from oakum_service.schedulers.slurm.hooks.report import Hook

_LIMIT_S, _GUARD_S = 12, 13
"""Below PrologEpilogTimeout even for two requests: a hook that Slurm kills while it waits keeps nothing."""


def make_patient(made: HookInstallation) -> None:
    """Give the installed hooks long time limits; they last until the hooks are installed anew."""
    for hook in Hook:
        file = made.folder / hook
        text, num_limits = re.subn(r"(?m)^((?:KEPT_)?LIMIT_S)=.*$", rf"\1={_LIMIT_S}", file.read_text("utf-8"))
        text, num_guards = re.subn(r"(?m)^((?:KEPT_)?GUARD_S)=.*$", rf"\1={_GUARD_S}", text)
        assert (num_limits, num_guards) == (2, 2)
        # At once: a shell reads its script as it goes.
        part = file.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.chmod(0o755)
        part.replace(file)
