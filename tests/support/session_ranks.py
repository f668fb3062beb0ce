"""Ranks of a script that are threads of the test's process, and that come, leave and are killed by a plan."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import GroupError
from oakum_worker.session.hosts import HOST, Asked, Host, RankHost
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import StepOrder, Turns, turns_alone
from waiting import DEADLINE_S


@dataclass(frozen=True)
class Stage:
    """One generation of the plan."""

    members: Sequence[str]
    steps: int = 10**6
    """Steps after which the next generation follows."""
    victim: str | None = None
    """The member that is killed in the middle of the step after these; None: all agree on the next generation."""
    loser: str | None = None
    """The member that alone loses the step after these: the others have the sums, and take it."""


def random_stages(count: int, seed: int) -> list[Stage]:
    """Generations that differ by ranks added, removed and killed, a few steps apart."""
    draw = random.Random(seed)
    members, made, stages = ["r0", "r1"], 2, []
    for _ in range(count):
        victim = draw.choice(members) if len(members) > 1 and draw.random() < 0.5 else None
        stages.append(Stage(tuple(members), draw.randint(1, 4), victim))
        if victim is not None:
            members = [name for name in members if name != victim]
        elif len(members) > 1 and draw.random() < 0.4:
            members.remove(draw.choice(members))
        if len(members) < 4 and (victim is None or draw.random() < 0.5):
            members = [*members, f"r{made}"]
            made += 1
        draw.shuffle(members)
    return [*stages, Stage(tuple(members))]


class Gone(BaseException):
    """Ends the thread of a rank that leaves or is killed; no script catches it."""


Script = Callable[["Rank"], Any]


class _Stopping(RankHost):
    """A rank alone that is gone after some steps."""

    def leave(self) -> NoReturn:
        raise Gone


def checkpoint_after(
    steps: int, spec: TrainerSpec, script: Callable[[None], Any], folder: Path
) -> Callable[[TrainingLoop], None]:
    """Run the script on one rank, which makes a checkpoint after some steps and is gone. Returns what takes a loop
    to this checkpoint."""
    checkpoints = DurableCheckpoints(folder, keep=1)

    def begin(loop: TrainingLoop) -> Turns:
        turns = turns_alone(loop)
        order = next(turns)
        while loop.step_count < steps:
            order = turns.send((yield order))
        checkpoints.save(loop.state.state_dict(), loop.step_count)
        return False

    token = HOST.set(_Stopping(spec, begin, lambda: None))
    try:
        with pytest.raises(Gone):
            script(None)
    finally:
        HOST.reset(token)

    def load(loop: TrainingLoop) -> None:
        newest = checkpoints.newest()
        assert newest is not None
        state = loop.state.state_dict()
        checkpoints.load(newest, state)
        loop.state.load_state_dict(state)

    return load


class Plan:
    """A trainer whose generations follow a plan. Each member's script runs in a thread of its own."""

    def __init__(self, stages: Sequence[Stage], spec: TrainerSpec, script: Script, begin: Any = None) -> None:
        """`begin(loop)` is called on the founders before the first generation."""
        self.stages, self.spec, self.begin = stages, spec, begin
        self._script = script
        self._stores = [dist.HashStore() for _ in stages]
        self._started: set[str] = set()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(64)
        self._ranks: dict[str, Future[Any]] = {}

    def run(self) -> dict[str, Any]:
        """Member -> what its script returned, None for those that left or were killed. Raises the first error of
        a script."""
        self.start(0)
        results: dict[str, Any] = {}
        while len(results) < len(self._ranks):
            for name in list(self._ranks):
                results[name] = self._ranks[name].result(DEADLINE_S)
        self._threads.shutdown()
        return results

    def errors(self) -> dict[str, BaseException | None]:
        """Member -> what its script raised."""
        self.start(0)
        return {name: one.exception(DEADLINE_S) for name, one in self._ranks.items()}

    def start(self, number: int) -> None:
        """Start the threads of a generation's members that are not there yet."""
        with self._lock:
            for name in self.stages[number].members:
                if name not in self._ranks:
                    self._ranks[name] = self._threads.submit(self._run, name, number)

    def _run(self, name: str, number: int) -> Any:
        rank = Rank(self, name, number)
        token = HOST.set(rank)
        try:
            return self._script(rank)
        except Gone:
            return None
        finally:
            HOST.reset(token)

    def form(self, number: int, rank: int) -> dist.ProcessGroup | None:
        size = len(self.stages[number].members)
        if size == 1:
            return None
        group = dist.ProcessGroupGloo(self._stores[number], rank, size, timedelta(seconds=60))
        group._set_default_timeout(timedelta(seconds=240))
        return group


class Rank(Host):
    """The host of one thread's session."""

    def __init__(self, plan: Plan, name: str, number: int) -> None:
        self.name, self._plan, self._number = name, plan, number
        self._group: Any = None
        self._dies = self._breaks = self._loses = False

    def spec(self, asked: Asked) -> TrainerSpec:
        return self._plan.spec

    def may_die(self) -> None:
        """Called in the middle of a step: ends the thread where the plan kills this rank now."""
        if self._dies:
            raise Gone

    def turns(self, loop: TrainingLoop) -> Turns:
        engine: Any = loop.assembly.engine
        finish = engine.finish
        # A thread cannot take its connections with it as a killed process does: what the others see of that.
        engine.finish = lambda: self._break() if self._breaks else self._finish(finish)
        has_state = self._number == 0
        if has_state and self._plan.begin is not None:
            self._plan.begin(loop)
        while True:
            stage = self._plan.stages[self._number]
            if self.name not in stage.members:
                return False
            self._plan.start(self._number)
            rank = stage.members.index(self.name)
            self._group = self._plan.form(self._number, rank)
            loop.join(self._group, rank, len(stage.members))
            self._share(loop, rank, loop.step_count if has_state else -1)
            has_state = True
            try:
                if (yield from self._train(loop, stage, rank)):
                    loop.conclude()
                    return True
            except GroupError:
                self._breaks = self._loses = False
            self._number += 1

    def _share(self, loop: TrainingLoop, rank: int, steps: int) -> None:
        if self._group is None:
            return
        import torch

        told = [torch.empty(1) for _ in range(loop.ranks.world_size)]
        self._group.allgather([told], [torch.tensor([float(steps)])]).wait()
        loop.state.share(int(torch.cat(told).argmax()))

    def _train(self, loop: TrainingLoop, stage: Stage, rank: int) -> Turns:
        taken = 0
        while not loop.finished:
            self._dies = stage.victim == self.name and taken == stage.steps
            self._breaks = stage.victim is not None and taken == stage.steps
            self._loses = stage.loser == self.name and taken == stage.steps
            is_last = stage.victim is None and stage.loser is None and taken + 1 == stage.steps
            result = yield StepOrder(partial(int, is_last and rank == 0))
            if result is None:
                return True
            taken += 1
            if result.signal or (stage.loser is not None and taken > stage.steps):
                return False
        return True

    def _break(self) -> NoReturn:
        raise GroupError("a rank was lost during a step")

    def _finish(self, finish: Callable[[], Any]) -> Any:
        sums = finish()
        return self._break() if self._loses else sums

    def leave(self) -> NoReturn:
        raise Gone
