"""One run: starts the service, puts it under load, and gathers what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from serving.agents import Agents
from serving.http_line import Line
from serving.measured import Measured, RouteFigures
from serving.processes import Watched, load_of_machine
from serving.users import Page, User, follow_events, spec_of

_BENCH = Path(__file__).resolve().parent.parent
_TASKS = _BENCH.parent / "tests" / "support" / "tasks"
_SERVICE = Path(__file__).with_name("service_process.py")
_NEAR_NODES = 2
_WIDE = 100
"""Most nodes of one of the trainers that the agents are of."""
_START_S, _FILLED_S, _END_S = 120.0, 180.0, 30.0
_IDLE_ROUNDS = 10
_SAMPLE_S = 5.0
_TELL_S = 30.0


@dataclass(frozen=True)
class Amounts:
    """How much load."""

    users: int
    agents: int
    pages: int
    streams: int
    """Event streams, those of the pages included."""
    think_s: float
    writes: float
    seconds: float


@dataclass
class Outcome:
    """What came of a run."""

    amounts: Amounts
    database: str
    idle: list[RouteFigures] = field(default_factory=list)
    """One user alone, before the load."""
    routes: list[RouteFigures] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    events: int = 0
    agents_training: int = 0
    cores: dict[str, float] = field(default_factory=dict)
    memory_by_minute: list[float] = field(default_factory=list)
    """Resident MiB of the service's process."""
    memory_at_half_mib: float = 0.0
    memory_at_end_mib: float = 0.0
    turn_age_by_minute: list[float] = field(default_factory=list)
    """Age in seconds that the newest turn of the membership loop reached."""
    load: float = 0.0


async def put_under_load(
    amounts: Amounts, database: str, server_pid: int | None, tell: Callable[[str], None]
) -> Outcome:
    """Run everything. `database` is the URL of an empty database, SQLite where it is empty; `tell` is given lines
    that say how far it is. Whatever happens, no process is left."""
    with tempfile.TemporaryDirectory(prefix="service-load-") as folder:
        run = _Run(amounts, Path(folder), database, tell)
        async with run.service():
            return await run.go(server_pid)


class _Run:
    def __init__(self, amounts: Amounts, folder: Path, database: str, tell: Callable[[str], None]) -> None:
        self._amounts, self._folder, self._database, self._tell = amounts, folder, database, tell
        self._measured = Measured()
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._turns: list[tuple[float, float]] = []
        self._agents: Agents | None = None

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[None]:
        """The service's process, for as long as the context lasts; then it and all below it are gone."""
        amounts = self._amounts
        numbers = (amounts.agents, max(1, amounts.users, amounts.streams, amounts.pages), _NEAR_NODES)
        log = self._folder / "service.log"
        self._tell("Starting the service")
        with log.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(_SERVICE), str(self._folder / "data"), *map(str, numbers), self._database),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": str(_BENCH)},
                start_new_session=True,
                limit=2**20,
            )
        listening = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            self._measured.is_over = True
            if self._agents is not None:
                self._agents.stop()
            await self._end()
            listening.cancel()
            if text := log.read_text(encoding="utf-8", errors="replace").strip():
                self._tell("the service's log ends with:\n" + text[-3000:])

    async def _end(self) -> None:
        if self._process.returncode is not None:
            return
        service = psutil.Process(self._process.pid)
        below = service.children(recursive=True)
        service.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_S)
        for process in [service, *below]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            if "turn_age_s" in told:
                self._turns.append((time.monotonic(), told["turn_age_s"]))
            elif "ready" in told:
                self._ready.set_result(told)
            elif self._agents is not None and "launch" in told:
                self._agents.launch(told["launch"], told["trainer"], told["token"])
            elif self._agents is not None:
                self._agents.cancel(told["cancel"])
        if not self._ready.done():
            self._ready.set_exception(RuntimeError("the service ended before it was ready: see its log"))

    def _say_ended(self, fragment: str) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(f"{fragment}\n".encode())

    async def go(self, server_pid: int | None) -> Outcome:
        """Idle, fill, load; returns what came of it."""
        ready = await asyncio.wait_for(self._ready, _START_S)
        self._url, self._tokens = ready["ready"], ready["users"]
        self._admin = Line(self._url, ready["admin"], self._measured)
        self._agents = Agents(self._url, self._measured, self._say_ended)
        while await self._admin.ask("GET /healthz", "/healthz") is None:  # it is about to listen
            await asyncio.sleep(0.1)
        outcome = Outcome(self._amounts, "PostgreSQL" if self._database else "SQLite")
        await self._train()
        outcome.idle = await self._measure_idle()
        await self._fill()
        database = None if server_pid is None else psutil.Process(server_pid)
        watched = Watched(psutil.Process(self._process.pid), database)
        await self._load(watched)
        outcome.routes = self._measured.figures(self._amounts.seconds)
        outcome.errors = dict(self._measured.errors)
        outcome.events, outcome.agents_training = self._measured.events, self._agents.num_training
        outcome.cores, outcome.memory_by_minute = watched.cores(), watched.memory_by_minute()
        sizes = [size for _, size in watched.memory_mib]
        outcome.memory_at_half_mib, outcome.memory_at_end_mib = sizes[len(sizes) // 2], sizes[-1]
        outcome.turn_age_by_minute, outcome.load = self._oldest_turns(), load_of_machine()
        return outcome

    async def _train(self) -> None:
        """Submit the trainer that really trains, and wait until it does."""
        spec = {
            "name": "trained",
            "entrypoint": "small_task:task",
            "workdir": str(_TASKS),
            "arguments": {"step_s": 0.2},
            "global_batch": 96,
            "epochs": 10**6,
            "max_nodes": _NEAR_NODES,
            "curves_by_type": {"cpu": [[1, 100.0], [_NEAR_NODES, 180.0]]},
        }
        await self._submit(spec)
        until_s = time.monotonic() + _START_S
        while not (await self._shown("trained"))["step"]:
            if time.monotonic() > until_s:
                raise TimeoutError(f"the trainer has taken no step within {_START_S:g} s")
            await asyncio.sleep(0.5)

    async def _submit(self, spec: dict[str, Any]) -> None:
        answer = await self._admin.ask("POST /v1/trainers", "/v1/trainers", spec)
        if answer is None or answer.status != 201:
            raise RuntimeError(f"the service has not taken {spec['name']}: {answer and answer.document}")

    async def _shown(self, trainer: str) -> Any:
        answer = await self._admin.ask("GET /v1/trainers/{ref}", f"/v1/trainers/{trainer}")
        return answer.document if answer is not None and answer.status == 200 else {"step": 0}

    async def _measure_idle(self) -> list[RouteFigures]:
        """One user and one page alone."""
        self._tell("One user alone")
        self._begin_measuring()
        began_s = time.monotonic()
        line = Line(self._url, self._tokens[0], self._measured)
        user, page = User(line, "idle", 1.0), Page(line, 0)
        for _ in range(_IDLE_ROUNDS):
            await user.do_everything()
            await page.refresh()
        figures = self._measured.figures(time.monotonic() - began_s)
        line.close()
        return figures

    def _begin_measuring(self) -> None:
        self._measured.seconds.clear()
        self._measured.errors.clear()
        self._measured.events = 0

    async def _fill(self) -> None:
        """Submit the trainers that get the far nodes, and wait until their agents train."""
        assert self._agents is not None
        wanted = self._amounts.agents
        for number, first in enumerate(range(0, wanted, _WIDE)):
            spec = spec_of(f"wide-{number}", min(_WIDE, wanted - first)) | {"weight": 100.0}
            await self._submit(spec)
        until_s = time.monotonic() + _FILLED_S
        while self._agents.num_training < 0.9 * wanted and time.monotonic() < until_s:
            self._tell(f"{len(self._agents)} agents, of which {self._agents.num_training} train")
            await asyncio.sleep(5.0)
        self._tell(f"{len(self._agents)} agents, of which {self._agents.num_training} train")

    async def _load(self, watched: Watched) -> None:
        """Let users, pages and streams loose beside the agents."""
        amounts, lines = self._amounts, iter(self._tokens * 4)
        users = [User(self._line(lines), f"u{number}", amounts.writes) for number in range(amounts.users)]
        tasks = [asyncio.create_task(user.run(amounts.think_s)) for user in users]
        pages = [Page(self._line(lines), 40 * number) for number in range(amounts.pages)]
        tasks += [asyncio.create_task(page.run()) for page in pages]
        streams = (follow_events(self._line(lines), self._measured) for _ in range(amounts.streams))
        tasks += [asyncio.create_task(stream) for stream in streams]
        self._begin_measuring()
        self._turns.clear()
        watched.begin()
        self._began_s = time.monotonic()
        try:
            await self._watch(watched)
        finally:
            self._measured.is_over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _line(self, tokens: Any) -> Line:
        return Line(self._url, next(tokens), self._measured)

    async def _watch(self, watched: Watched) -> None:
        told_s = self._began_s
        while (left_s := self._began_s + self._amounts.seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(_SAMPLE_S, left_s))
            watched.sample()
            if time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                answers = sum(map(len, self._measured.seconds.values()))
                problems = sum(self._measured.errors.values())
                oldest_s = max((age_s for _, age_s in self._turns[-30:]), default=0.0)
                self._tell(
                    f"{told_s - self._began_s:.0f} s: {answers} answers, {problems} errors, "
                    f"{watched.memory_mib[-1][1]:.0f} MiB, oldest turn {oldest_s:.1f} s"
                )

    def _oldest_turns(self) -> list[float]:
        oldest: dict[int, float] = {}
        for at_s, age_s in self._turns:
            minute = int((at_s - self._began_s) // 60)
            oldest[minute] = max(oldest.get(minute, 0.0), round(age_s, 2))
        return list(oldest.values())
