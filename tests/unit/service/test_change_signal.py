"""The change signal: whoever waits for a change is woken by it, whenever it happens."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from oakum_service.change_signal import ChangeSignal

LONG_S = 30.0
"""A wait that is only ended by a wake-up; tests that reach it fail."""
SHORT_S = 15.0


def waited_s(signal: ChangeSignal, seen: int, timeout_s: float = LONG_S) -> float:
    """Wait for a change in an event loop of this thread; returns how many seconds that took."""
    began_s = time.monotonic()
    asyncio.run(signal.wait(seen, timeout_s))
    return time.monotonic() - began_s


def test_a_change_between_the_look_and_the_wait_is_not_lost() -> None:
    signal = ChangeSignal()
    seen = signal.version
    signal.notify()
    assert waited_s(signal, seen) < SHORT_S


def test_a_change_while_waiting_ends_the_wait() -> None:
    signal = ChangeSignal()
    seen = signal.version
    threading.Timer(0.1, signal.notify).start()
    assert waited_s(signal, seen) < SHORT_S


def test_without_a_change_the_wait_ends_when_time_is_up() -> None:
    signal = ChangeSignal()
    signal.notify()
    assert 0.1 <= waited_s(signal, signal.version, 0.1) < SHORT_S


def test_a_change_that_was_seen_does_not_end_the_next_wait() -> None:
    signal = ChangeSignal()
    seen = signal.version
    signal.notify()
    asyncio.run(signal.wait(seen, LONG_S))
    assert waited_s(signal, signal.version, 0.1) >= 0.1


def test_one_change_wakes_everyone_in_every_loop() -> None:
    signal, loops, each = ChangeSignal(), 3, 20
    started = threading.Barrier(loops + 1)

    async def wait_together() -> None:
        waits = [asyncio.create_task(signal.wait(seen, LONG_S)) for _ in range(each)]
        await asyncio.sleep(0)  # every task now waits
        await asyncio.to_thread(started.wait, SHORT_S)
        await asyncio.gather(*waits)

    seen = signal.version
    with ThreadPoolExecutor(loops) as threads:
        running = [threads.submit(asyncio.run, wait_together()) for _ in range(loops)]
        started.wait(SHORT_S)
        signal.notify()
        for loop in running:
            loop.result(SHORT_S)


def test_a_reader_that_looks_before_it_waits_sees_every_change() -> None:
    """A reader that reads the version first, as all users of the signal do, against a writer that never pauses."""
    signal, last, written = ChangeSignal(), 3000, [0]

    def write() -> None:
        for number in range(1, last + 1):
            written.append(number)
            signal.notify()

    async def read() -> None:
        while True:
            seen = signal.version
            if written[-1] == last:
                return
            await signal.wait(seen, LONG_S)

    writer = threading.Thread(target=write)
    writer.start()
    asyncio.run(asyncio.wait_for(read(), SHORT_S))
    writer.join()


def test_closing_wakes_everyone_and_nobody_waits_any_more() -> None:
    signal = ChangeSignal()
    assert not signal.closed
    threading.Timer(0.1, signal.close).start()
    assert waited_s(signal, signal.version) < SHORT_S
    assert signal.closed
    assert waited_s(signal, signal.version) < SHORT_S


def test_a_loop_that_has_ended_in_the_middle_of_a_wait_does_not_hurt_the_others() -> None:
    signal = ChangeSignal()
    gone = asyncio.new_event_loop()
    wait = gone.create_task(signal.wait(signal.version, LONG_S))
    gone.run_until_complete(asyncio.sleep(0))
    gone.close()
    wait._log_destroy_pending = False  # type: ignore[attr-defined]  # as a killed thread leaves it
    seen = signal.version
    threading.Timer(0.1, signal.notify).start()
    assert waited_s(signal, seen) < SHORT_S


@pytest.mark.parametrize("ending", ["time is up", "cancelled"])
def test_nothing_is_kept_of_a_wait_that_has_ended(ending: str) -> None:
    signal = ChangeSignal()

    async def give_up() -> None:
        if ending == "cancelled":
            task = asyncio.create_task(signal.wait(signal.version, LONG_S))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            await signal.wait(signal.version, 0.01)

    asyncio.run(give_up())
    assert not signal._waiters
