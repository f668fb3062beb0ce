"""Users: what they do at the command line, and the pages and event streams that they keep open."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from serving.http_line import Line
from serving.measured import Measured
from serving.wide_cluster import FAR

_IN_VIEW = 40
"""Nodes whose rows a page shows."""
_SPAN_S = 900.0
_OVERLAP_S = 60.0
_PLAN_EVERY_S = 6.0
_STRIP_EVERY_S = 12.0
_GAP_S = (1.0, 6.0)
"""Shortest and longest time between two refreshes of a page."""
_BYTES_PER_S = 8000
"""Traffic above which a page refreshes less often."""
_READS = (
    ("GET /v1/trainers", "/v1/trainers", 6),
    ("GET /v1/trainers?state=running", "/v1/trainers?state=running", 3),
    ("GET /v1/cluster", "/v1/cluster", 2),
    ("GET /v1/nodes", "/v1/nodes", 1),
    ("GET /v1/plans/current", "/v1/plans/current", 1),
    ("GET /v1/events/recent", "/v1/events/recent", 1),
    ("GET /v1/trainers/{ref}", "/v1/trainers/{}", 4),
    ("GET /v1/trainers/{ref}/explain", "/v1/trainers/{}/explain", 4),
    ("GET /v1/trainers/{ref}/series", "/v1/trainers/{}/series", 2),
)
"""Route, path and how often: `{}` is a trainer of the user's own."""


def spec_of(name: str, max_nodes: int) -> dict[str, Any]:
    """A trainer for far nodes that never ends by itself."""
    curve = [[1, 100.0]] if max_nodes == 1 else [[1, 100.0], [max_nodes, 100.0 * max_nodes**0.9]]
    return {
        "name": name,
        "entrypoint": "tasks.digits:task",
        "global_batch": 1000,
        "epochs": 10**6,
        "max_nodes": max_nodes,
        "curves_by_type": {FAR: curve},
    }


class User:
    """A user at the command line, with one trainer at a time: submitted, changed, paused, resumed, cancelled."""

    def __init__(self, line: Line, name: str, writes: float) -> None:
        """`writes` is the share of what the user does that changes something."""
        self._line, self._name, self._writes = line, name, writes
        self._numbers = 0
        self._trainer = ""
        self._next: list[Callable[[], tuple[str, str, Any]]] = []

    async def run(self, think_s: float) -> None:
        """Act for ever, `think_s` seconds apart on average."""
        while True:
            await asyncio.sleep(random.expovariate(1 / think_s))
            await self.act()

    async def act(self) -> None:
        """Do one thing."""
        if random.random() < self._writes or not self._trainer:
            await self._write()
        else:
            route, path, _ = random.choices(_READS, [weight for *_, weight in _READS])[0]
            await self._line.ask(route, path.format(self._trainer))

    async def do_everything(self) -> None:
        """Submit a trainer, ask for everything, do everything else to the trainer."""
        await self._write()
        for route, path, _ in _READS:
            await self._line.ask(route, path.format(self._trainer))
        while self._next:
            await self._write()

    async def _write(self) -> None:
        if not self._next:
            self._numbers += 1
            self._trainer = f"{self._name}-{self._numbers}"
            self._next = [self._cancel, self._resume, self._pause, self._change]
            spec = spec_of(self._trainer, random.randint(1, 3))
            await self._line.ask("POST /v1/trainers", "/v1/trainers", spec)
            return
        route, path, body = self._next.pop()()
        await self._line.ask(route, path, body)

    def _change(self) -> tuple[str, str, Any]:
        return "PATCH /v1/trainers/{ref}", f"/v1/trainers/{self._trainer}", {"weight": 0.5}

    def _pause(self) -> tuple[str, str, Any]:
        return "PUT /v1/trainers/{ref}/pause", f"/v1/trainers/{self._trainer}/pause", {"reason": "a look"}

    def _resume(self) -> tuple[str, str, Any]:
        return "DELETE /v1/trainers/{ref}/pause", f"/v1/trainers/{self._trainer}/pause", None

    def _cancel(self) -> tuple[str, str, Any]:
        return "POST /v1/trainers/{ref}/cancel", f"/v1/trainers/{self._trainer}/cancel", None


class Page:
    """The dashboard's first view in a browser: it asks for what has changed, sooner where little has."""

    def __init__(self, line: Line, first: int) -> None:
        """`first` is the first node in view."""
        self._line, self._first = line, first
        self._version: str | None = None
        self._names: list[str] = []
        self._until: float | None = None
        self._bytes = 0
        self._plan_at = self._strip_at = 0.0

    async def run(self) -> None:
        """Refresh for ever. A page that many events reach refreshes as often as it may."""
        await asyncio.sleep(random.uniform(*_GAP_S))
        while True:
            began_s, self._bytes = time.monotonic(), 0
            await self.refresh()
            gap_s = min(_GAP_S[1], max(_GAP_S[0], self._bytes / _BYTES_PER_S))
            await asyncio.sleep(max(0.0, began_s + gap_s - time.monotonic()))

    async def refresh(self) -> None:
        """Ask for all that the page shows."""
        await self._get("GET /v1/cluster", "/v1/cluster")
        await self._get("GET /v1/trainers?limit=5", "/v1/trainers?limit=5")
        await self._ask_nodes()
        now = time.time()
        if now - self._plan_at > _PLAN_EVERY_S:
            self._plan_at = now
            await self._get("GET /v1/plans?limit=1", "/v1/plans?limit=1")
        if self._names:
            await self._ask_rows(now)
        if now - self._strip_at > _STRIP_EVERY_S:
            self._strip_at = now
            asked = {"from_at": f"{now - 86400:.0f}", "to_at": f"{now:.0f}", "columns": 300, "bands": 1}
            await self._get("GET /v1/timeline/occupancy", f"/v1/timeline/occupancy?{urlencode(asked)}")

    async def _ask_nodes(self) -> None:
        since = "" if self._version is None else f"?{urlencode({'since': self._version})}"
        answer = await self._get(f"GET /v1/nodes{'?since' if since else ''}", f"/v1/nodes{since}")
        if answer is not None:
            self._version = answer["version"] or None
            if not answer["is_difference"]:
                self._names = [node["name"] for node in answer["nodes"]][self._first : self._first + _IN_VIEW]

    async def _ask_rows(self, now: float) -> None:
        asked: list[tuple[str, Any]] = [("from_at", f"{now - _SPAN_S:.1f}"), ("to_at", f"{now + 86400:.1f}")]
        if self._until is not None:
            asked.append(("changed_after", f"{self._until - _OVERLAP_S:.1f}"))
        asked += [("node", name) for name in self._names]
        answer = await self._get("GET /v1/timeline/rows", f"/v1/timeline/rows?{urlencode(asked)}")
        self._until = answer["to_at"] if answer is not None else None

    async def _get(self, route: str, path: str) -> Any:
        answer = await self._line.ask(route, path)
        if answer is None or answer.status >= 400:
            return None
        self._bytes += len(answer.body)
        return answer.document


async def follow_events(line: Line, measured: Measured) -> None:
    """Keep an event stream open, and open it anew where it ends."""
    while True:
        async for chunk in line.events("GET /v1/events"):
            measured.events += chunk.count(b"\nid:") + chunk.startswith(b"id:")
        await asyncio.sleep(1.0)
