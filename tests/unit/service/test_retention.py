"""What is forgotten, and what is not."""

from __future__ import annotations

import time

from sqlalchemy import select

from oakum_service.control.retention import HISTORY_S, forget
from oakum_service.db.engine import Sessions
from oakum_service.db.models import ForegroundStart, NodeInterval


def test_what_nodes_did_is_known_for_as_long_as_the_history_reaches(sessions: Sessions) -> None:
    begin = time.time() - HISTORY_S
    with sessions.begin() as session:
        for node, end_at in (("gone", begin - 60.0), ("kept", begin + 60.0), ("still", None)):
            session.add(NodeInterval(node=node, state="hole", start_at=begin - 120.0, end_at=end_at))
        for job, started_at in (("gone", begin - 60.0), ("kept", begin + 60.0)):
            session.add(ForegroundStart(job=job, started_at=started_at, num_nodes=1, delay_s=0.1))
        session.flush()
        forget(session)
        assert list(session.execute(select(NodeInterval.node)).scalars()) == ["kept", "still"]
        assert list(session.execute(select(ForegroundStart.job)).scalars()) == ["kept"]
