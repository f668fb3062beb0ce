"""Waiting until trainers have ended, for the command `oakum wait` and for scripts."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence

from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ServiceUnreachable
from oakum_service.api.schemas.trainers import TrainerView

_LOOK_AGAIN_S = 30.0
"""Seconds between two queries while events are received; an event that gets lost delays the command by at most
this."""
_LOOK_AGAIN_DEAF_S = 2.0
"""Seconds between two queries if the service gives us no event stream."""
_PATIENCE_S = 60.0
"""Seconds for which the service may be unreachable."""


def wait_for_ends(
    client: OakumClient, refs: Sequence[str], until: float | None, *, first_only: bool
) -> tuple[list[TrainerView], list[str]]:
    """Wait until all trainers have ended, with `first_only` until one has, or until the time `until` (monotonic
    seconds). Returns (documents of those that have ended, in that order; names of the others).

    While the service does not answer, for instance because it is restarted, the wait goes on for up to 60 s.
    """
    changes, heard_at = _Changes(client), time.monotonic()
    # By id: after a trainer's end, another one may get its name.
    left = {client.trainer(ref).id: ref for ref in dict.fromkeys(refs)}
    ended: list[TrainerView] = []
    while True:
        try:
            for trainer in list(left):
                view = client.trainer(trainer)
                heard_at = time.monotonic()
                if view.state.ended:
                    ended.append(view)
                    del left[trainer]
        except ServiceUnreachable:
            if time.monotonic() - heard_at > _PATIENCE_S:
                raise
        if not left or (first_only and ended):
            return (ended[:1] if first_only else ended), list(left.values())
        remaining_s = None if until is None else until - time.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return ended, list(left.values())
        changes.wait(math.inf if remaining_s is None else remaining_s)


class _Changes:
    """Lets a command sleep until something may have happened to a trainer, by the service's event stream."""

    def __init__(self, client: OakumClient) -> None:
        recent = client.recent_events(1).events
        self._after = recent[-1].id if recent else 0
        self._client = client
        self._happened = threading.Event()
        self._deaf = False
        threading.Thread(target=self._listen, daemon=True, name="events").start()

    def wait(self, seconds: float) -> None:
        """Return when an event has arrived since the last call, and at the latest after `seconds`, or after 30 s
        (2 s without an event stream)."""
        period_s = _LOOK_AGAIN_DEAF_S if self._deaf else _LOOK_AGAIN_S
        self._happened.wait(min(seconds, period_s))
        self._happened.clear()

    def _listen(self) -> None:
        # The service may be unreachable for a while, or have no event stream left for us.
        with contextlib.suppress(Exception):
            for event in self._client.events(after=self._after):
                if event.kind.startswith("trainer."):
                    self._happened.set()
        self._deaf = True
        self._happened.set()
