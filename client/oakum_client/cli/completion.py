"""Completes trainers' names in a shell: quickly, and silently if the service does not answer."""

from __future__ import annotations

import contextlib

_PATIENCE_S = 1.0


def complete_trainer(incomplete: str) -> list[tuple[str, str]]:
    """(name, state) of the trainers whose names begin like this, among those that are live and the newest hundred
    that have ended; of several with one name, the newest. None where the service does not answer."""
    with contextlib.suppress(Exception):
        from oakum_client.rest.client import OakumClient

        with OakumClient(timeout_s=_PATIENCE_S) as client:
            trainers = client.recent_trainers(num_ended=100).trainers
        return [
            (name, str(state))
            for name, state in {t.name: t.state for t in trainers}.items()
            if name.startswith(incomplete)
        ]
    return []
