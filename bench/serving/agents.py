"""Agents that speak for fragments on far nodes: they report and ask for directives as real ones do, and train
nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from serving.http_line import Line
from serving.measured import Measured

_POLL_S = 10.0
_START_UP_S = (1.0, 5.0)
_FORMS_S = (0.05, 0.3)
"""Shortest and longest time until a generation's ranks have met."""
_RETRY_S = 0.3
_SAMPLES_PER_S = 100.0
"""Of one node."""
_BATCH = 1000


class Agents:
    """All agents of a run."""

    def __init__(self, url: str, measured: Measured, say_ended: Callable[[str], None]) -> None:
        """`say_ended` is given the fragment of each agent that has left."""
        self._url, self._measured, self._say_ended = url, measured, say_ended
        self._agents: dict[str, _Agent] = {}
        self._trainings: dict[str, _Training] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._agents)

    @property
    def num_training(self) -> int:
        """How many are members of a generation that has formed."""
        return sum(agent.phase == "training" for agent in self._agents.values())

    def launch(self, fragment: str, trainer: str, token: str) -> None:
        """Start an agent."""
        training = self._trainings.setdefault(trainer, _Training())
        agent = self._agents[fragment] = _Agent(self._url, fragment, token, training, self._measured)
        task = asyncio.get_running_loop().create_task(self._live(fragment, agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, fragment: str) -> None:
        """Send the agent its SIGTERM."""
        if (agent := self._agents.get(fragment)) is not None:
            agent.signal()

    def stop(self) -> None:
        """End all at once."""
        for task in self._tasks:
            task.cancel()

    async def _live(self, fragment: str, agent: _Agent) -> None:
        await agent.run()
        del self._agents[fragment]
        self._say_ended(fragment)


class _Training:
    """How far a trainer has come."""

    def __init__(self) -> None:
        self.samples, self._counted_s = 0.0, time.monotonic()

    def go_on(self, rate: float) -> None:
        """Count the samples since the last call, at `rate` per second."""
        now_s = time.monotonic()
        self.samples += rate * (now_s - self._counted_s)
        self._counted_s = now_s


class _Agent:
    """One fragment's agent, with a connection for reports and one for directives."""

    def __init__(self, url: str, fragment: str, token: str, training: _Training, measured: Measured) -> None:
        self.phase = "warming"
        self._training = training
        self._fragment, self._path = fragment, f"/v1/fragments/{fragment}"
        self._reports, self._directives = (Line(url, token, measured, zipped=False) for _ in range(2))
        self._is_due, self._has_left = asyncio.Event(), asyncio.Event()
        self._interval_s, self._sequence, self._revision = 1.0, 0, -1
        self._generation, self._broken, self._members = 0, 0, 0
        self._is_first, self._leaves = False, False
        self._signalled_at: float | None = None
        self._switches: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Live until the fragment leaves."""
        tasks = [asyncio.create_task(each) for each in (self._warm_up(), self._report(), self._obey())]
        try:
            await self._has_left.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._directives.close()
            self._reports.close()
        await self._send()  # its last words, on a connection of their own
        self._reports.close()

    def signal(self) -> None:
        """The scheduler wants the node. Whoever is no member leaves at once."""
        if self._signalled_at is None:
            self._signalled_at = time.time()
            self._become("left" if self.phase in ("warming", "ready") else "leaving")

    def _become(self, phase: str) -> None:
        if self.phase == "left":
            return
        self.phase = phase
        self._is_due.set()
        if phase == "left":
            self._has_left.set()

    async def _warm_up(self) -> None:
        await asyncio.sleep(random.uniform(*_START_UP_S))
        if self.phase == "warming":
            self._become("left" if self._leaves else "ready")

    async def _report(self) -> None:
        while True:
            self._is_due.clear()
            began_s = time.monotonic()
            await self._send()
            with contextlib.suppress(TimeoutError):
                wait_s = max(0.05, began_s + self._interval_s - time.monotonic())
                await asyncio.wait_for(self._is_due.wait(), wait_s)

    async def _send(self) -> None:
        self._sequence += 1
        answer = await self._reports.ask(
            "POST /v1/fragments/{id}/report", f"{self._path}/report", self._document(), expected=(410,)
        )
        if answer is None:
            await asyncio.sleep(_RETRY_S)
        elif answer.status == 410:
            self._become("left")
        else:
            self._interval_s = float(answer.fields.get("oakum-report-interval", "1"))

    def _document(self) -> dict[str, Any]:
        told = {
            "phase": self.phase,
            "sequence": self._sequence,
            "pid": 1,
            "host": "far",
            "ranks": [{"host": "127.0.0.1", "port": 1}],
            "generation": self._generation,
            "broken": self._broken,
            "holds": "ranks" if self._generation else "nowhere",
            "startup_s": None if self.phase == "warming" else 3.0,
            "switches": self._switches[-8:],
            "signalled": self._signalled_at is not None,
            "signalled_at": self._signalled_at,
        }
        return told | ({"progress": self._progress()} if self._is_first and self.phase == "training" else {})

    def _progress(self) -> dict[str, Any]:
        rate = _SAMPLES_PER_S * self._members**0.9
        self._training.go_on(rate)
        samples = int(self._training.samples)
        return {
            "generation": self._generation,
            "nodes": self._members,
            "step": samples // _BATCH,
            "total_steps": 10**8,
            "epoch": 0,
            "samples": samples,
            "total_samples": 10**11,
            "global_batch": _BATCH,
            "loss": 1.0,
            "samples_per_s": rate,
        }

    async def _obey(self) -> None:
        while True:
            answer = await self._directives.ask(
                "GET /v1/fragments/{id}/directive",
                f"{self._path}/directive?after={self._revision}&wait_s={_POLL_S:g}",
                waits_s=_POLL_S,
                expected=(410,),
            )
            if answer is None:
                await asyncio.sleep(_RETRY_S)
            elif answer.status == 410:
                self._become("left")
            elif answer.status == 200:
                await self._follow(answer.document)

    async def _follow(self, directive: dict[str, Any]) -> None:
        self._revision, self._leaves = directive["revision"], directive["leave"]
        generation = directive["generation"]
        members = [member["fragment"] for member in generation["members"]] if generation else []
        over = directive["over"]
        if generation and self._fragment in members and generation["number"] > max(self._generation, over):
            if self.phase != "warming":
                await asyncio.sleep(random.uniform(*_FORMS_S))
                self._form(generation["number"], members)
        elif self._fragment not in members and self.phase != "warming":
            wanted_back = self._leaves or self._signalled_at is not None
            self._become("left" if wanted_back else "ready")
        elif self.phase == "training" and self._generation <= over:
            self._broken = self._generation
            self._become("broken")

    def _form(self, number: int, members: list[str]) -> None:
        source = "survivor" if self._generation else "scratch"
        self._generation, self._members, self._is_first = number, len(members), members[0] == self._fragment
        if self._is_first:
            self._training.go_on(0.0)
            told = {"generation": number, "step": int(self._training.samples) // _BATCH, "source": source}
            self._switches.append(told | ({"stall_s": 0.2} if source == "survivor" else {}))
        if self._signalled_at is None:
            self._become("training")
