"""/v1/ledger: what users' trainers had of the cluster, month by month."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from oakum_service.api.auth import Role, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.ledger import Ledger, LedgerEntry
from oakum_service.control.ledger import ledger, month_of

router = APIRouter(prefix="/v1/ledger", tags=["ledger"])


@router.get("")
def show_ledger(
    context: InContext,
    viewer: Viewer,
    month: Annotated[
        str | None,
        Query(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$", description="such as 2026-11; default: the present one"),
    ] = None,
    months: Annotated[int, Query(ge=1, le=24, description="number of months, up to and with `month`")] = 1,
    user: Annotated[str | None, Query(max_length=63, description="rows of this user only")] = None,
) -> Ledger:
    """List what was lent to each user's trainers in each month, what of it they trained in, what was lost by which
    cause, how long foreground jobs waited for them, and by what causes their fragments ended. Users see their own
    rows, administrators and viewers all."""
    now = time.time()
    last = month or month_of(now)
    first = _earlier(last, months - 1)
    if viewer.role is Role.USER:
        if user not in (None, viewer.name):
            return Ledger(from_month=first, to_month=last, entries=[])
        user = viewer.name
    with context.readers.begin() as session:
        sums_by_key = ledger(session, first, last, user, now)
    entries = [
        LedgerEntry(
            month=of_month,
            user=name,
            lent_node_h=sums.lent_node_s / 3600,
            trained_node_h=sums.trained_node_s / 3600,
            warm_up_node_h=sums.warm_up_node_s / 3600,
            grow_node_h=sums.grow_node_s / 3600,
            shrink_node_h=sums.shrink_node_s / 3600,
            loss_node_h=sums.loss_node_s / 3600,
            repeated_node_h=sums.repeated_node_s / 3600,
            foreground_delay_s=sums.foreground_delay_s,
            ends=sums.ends,
        )
        for (of_month, name), sums in sums_by_key.items()
    ]
    return Ledger(from_month=first, to_month=last, entries=entries)


def _earlier(month: str, count: int) -> str:
    """The month that is `count` months before the given one."""
    number = int(month[:4]) * 12 + int(month[5:]) - 1 - count
    return f"{max(0, number) // 12:04}-{max(0, number) % 12 + 1:02}"
