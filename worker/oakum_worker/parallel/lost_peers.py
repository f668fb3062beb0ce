"""Errors of collectives in which a rank was lost, told as `GroupError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

from oakum_worker.errors import GroupError


class LostInPasses:
    """Notes that a rank was lost in passes that nobody can end early, such as a script's own. They go on with this
    rank's samples alone, and what they compute is thrown away where the step would be taken."""

    def __init__(self) -> None:
        self.error: GroupError | None = None


@contextlib.contextmanager
def lost_peers(when: str) -> Iterator[None]:
    """Context in which the `RuntimeError` of a failed collective is raised as `GroupError`; `when` goes into its
    message. For collectives that other code starts, such as FSDP2 or an optimizer. Other errors pass through."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise GroupError(f"a rank was lost {when}: {error}") from error
        raise


@contextlib.contextmanager
def collective_of_passes(when: str, lost: LostInPasses | None) -> Iterator[bool]:
    """Context of a collective within forward or backward passes. Yields whether to call it: not where `lost` knows
    of a lost rank. Failures are noted in `lost`, the first one alone; with None they raise `GroupError`, whose
    message says `when`."""
    if lost is None:
        with lost_peers(when):
            yield True
        return
    try:
        with lost_peers(when):
            yield lost.error is None
    except GroupError as error:
        lost.error = lost.error or error
