"""The hub: whoever waits for a change is woken by it, whenever it happens."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from oakum_service.control.hub import Hub

LONG_S = 30.0
"""A wait that is only ended by a wake-up; tests that reach it fail."""
SHORT_S = 15.0


def waited_s(hub: Hub, seen: int, timeout_s: float = LONG_S) -> float:
    """Wait in a loop of this thread's own; returns how long."""
    began_s = time.monotonic()
    asyncio.run(hub.wait(seen, timeout_s))
    return time.monotonic() - began_s


def test_a_change_between_the_look_and_the_wait_is_not_lost() -> None:
    hub = Hub()
    seen = hub.version
    hub.notify()
    assert waited_s(hub, seen) < SHORT_S


def test_a_change_while_waiting_ends_the_wait() -> None:
    hub = Hub()
    seen = hub.version
    threading.Timer(0.1, hub.notify).start()
    assert waited_s(hub, seen) < SHORT_S


def test_without_a_change_the_wait_ends_when_time_is_up() -> None:
    hub = Hub()
    hub.notify()
    assert 0.1 <= waited_s(hub, hub.version, 0.1) < SHORT_S


def test_a_change_that_was_seen_does_not_end_the_next_wait() -> None:
    hub = Hub()
    seen = hub.version
    hub.notify()
    asyncio.run(hub.wait(seen, LONG_S))
    assert waited_s(hub, hub.version, 0.1) >= 0.1


def test_one_change_wakes_everyone_in_every_loop() -> None:
    hub, loops, each = Hub(), 3, 20
    started = threading.Barrier(loops + 1)

    async def wait_together() -> None:
        waits = [asyncio.create_task(hub.wait(seen, LONG_S)) for _ in range(each)]
        await asyncio.sleep(0)  # every task now waits
        await asyncio.to_thread(started.wait, SHORT_S)
        await asyncio.gather(*waits)

    seen = hub.version
    with ThreadPoolExecutor(loops) as threads:
        running = [threads.submit(asyncio.run, wait_together()) for _ in range(loops)]
        started.wait(SHORT_S)
        hub.notify()
        for loop in running:
            loop.result(SHORT_S)


def test_a_reader_that_looks_before_it_waits_sees_every_change() -> None:
    """The pattern of every user of the hub, against a writer that never pauses."""
    hub, last, written = Hub(), 3000, [0]

    def write() -> None:
        for number in range(1, last + 1):
            written.append(number)
            hub.notify()

    async def read() -> None:
        while True:
            seen = hub.version
            if written[-1] == last:
                return
            await hub.wait(seen, LONG_S)

    writer = threading.Thread(target=write)
    writer.start()
    asyncio.run(asyncio.wait_for(read(), SHORT_S))
    writer.join()


def test_closing_wakes_everyone_and_nobody_waits_any_more() -> None:
    hub = Hub()
    assert not hub.closed
    threading.Timer(0.1, hub.close).start()
    assert waited_s(hub, hub.version) < SHORT_S
    assert hub.closed
    assert waited_s(hub, hub.version) < SHORT_S


def test_a_loop_that_has_ended_in_the_middle_of_a_wait_does_not_hurt_the_others() -> None:
    hub = Hub()
    gone = asyncio.new_event_loop()
    wait = gone.create_task(hub.wait(hub.version, LONG_S))
    gone.run_until_complete(asyncio.sleep(0))
    gone.close()
    wait._log_destroy_pending = False  # type: ignore[attr-defined]  # as a killed thread leaves it
    seen = hub.version
    threading.Timer(0.1, hub.notify).start()
    assert waited_s(hub, seen) < SHORT_S


@pytest.mark.parametrize("ending", ["time is up", "cancelled"])
def test_nothing_is_kept_of_a_wait_that_has_ended(ending: str) -> None:
    hub = Hub()

    async def give_up() -> None:
        if ending == "cancelled":
            task = asyncio.create_task(hub.wait(hub.version, LONG_S))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            await hub.wait(hub.version, 0.01)

    asyncio.run(give_up())
    assert not hub._waiters
