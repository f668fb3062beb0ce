"""A notice that could not be delivered is delivered after the service was killed and started again."""

from __future__ import annotations

from pathlib import Path

from receiver import Receiver
from running_service import RunningService, small_spec
from waiting import wait_until


def test_a_notice_outlives_kill_9_and_comes_under_one_id(service: RunningService, tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.statuses = [503] * 1000
    try:
        service.configure(OAKUM_NOTICES_ALLOW='["127.0.0.1"]', OAKUM_NOTICES_RETRY_S="0.05")
        client = service.start("--dry-run")
        client.submit(small_spec("digits", notify=[{"webhook": receiver.url, "on": ["cancelled"]}]))
        client.cancel("digits")
        wait_until("a first try", lambda: receiver.requests)
        service.kill()
        tried = len(receiver.requests)
        receiver.statuses = []
        client = service.start("--dry-run")
        wait_until("it is taken", lambda: client.notices().notices[0].sent_at)
        assert len(receiver.requests) > tried
        assert len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) == 1
        assert receiver.documents()[-1]["message"] == "cancelled by its user"
    finally:
        receiver.close()
