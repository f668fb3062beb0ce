"""Random changes of membership: drawn from a seed, and carried out on the processes that exist at that moment."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import psutil

from oakum_service.api.schemas.trainers import TrainerChange
from soaking.site import FragmentProcess, Site

_PAUSE_S = 0.8
_SLOW_S = 2.0
_SLOW_STOPPED_S, _SLOW_RUNNING_S = 0.1, 0.05


class Kind(StrEnum):
    """Kinds of changes."""

    RESIZE = "resize"
    FOREGROUND = "foreground job"
    KILL_RANK = "kill -9 rank"
    KILL_AGENT = "kill -9 agent"
    KILL_TWO = "kill -9 two ranks"
    HANG_RANK = "stop rank"
    HANG_NODE = "stop rank and agent"
    PAUSE = "pause rank"
    SLOW = "slow rank"


_WEIGHTS = {Kind.RESIZE: 6, Kind.FOREGROUND: 4, Kind.KILL_RANK: 3, Kind.KILL_AGENT: 2}


@dataclass(frozen=True)
class Change:
    """One random change. `where` and `size`, between 0 and 1, choose among the processes that exist when it is
    carried out."""

    kind: Kind
    where: float
    size: float
    settles: bool
    """Whether the trainer is given time to reach its size before the next change."""


def draw(seed: int, count: int, settling: float) -> list[Change]:
    """Draw `count` changes from the seed; before a share `settling` of them the soak waits for the trainer to
    settle."""
    rng = random.Random(seed)
    kinds, weights = list(Kind), [_WEIGHTS.get(kind, 1) for kind in Kind]
    return [
        Change(rng.choices(kinds, weights)[0], rng.random(), rng.random(), rng.random() < settling)
        for _ in range(count)
    ]


class Changer:
    """Carries changes out on one trainer."""

    def __init__(self, site: Site, trainer: str) -> None:
        self._site = site
        self._trainer = trainer
        self.wanted = site.nodes
        """The size that the trainer may have; foreground jobs may take nodes from it for a while."""

    def carry_out(self, change: Change) -> str:
        """Carry the change out; returns text that says what was done."""
        match change.kind:
            case Kind.RESIZE:
                return self._resize(change)
            case Kind.FOREGROUND:
                return self._take_nodes(change)
            case Kind.KILL_RANK:
                return self._strike(change, ("rank",), psutil.Process.kill)
            case Kind.KILL_AGENT:
                return self._strike(change, ("agent",), psutil.Process.kill)
            case Kind.KILL_TWO:
                return self._strike(change, ("rank",), psutil.Process.kill, victims=2)
            case Kind.HANG_RANK:
                return self._strike(change, ("rank",), psutil.Process.suspend)
            case Kind.HANG_NODE:
                return self._strike(change, ("agent", "rank"), psutil.Process.suspend)
            case Kind.PAUSE:
                return self._strike(change, ("rank",), _pause)
            case Kind.SLOW:
                return self._strike(change, ("rank",), _slow_down)

    def _resize(self, change: Change) -> str:
        before, nodes = self.wanted, self._site.nodes
        others = [size for size in range(1, nodes + 1) if size != before]
        self.wanted = others[int(change.size * len(others))]
        self._site.client.change(self._trainer, TrainerChange(max_nodes=self.wanted))
        return f"{'grow' if self.wanted > before else 'shrink'} from {before} to {self.wanted}"

    def _take_nodes(self, change: Change) -> str:
        nodes, run_s = 1 + int(change.size * self._site.nodes), 0.5 + 2 * change.where
        self._site.take_nodes(nodes, run_s)
        return f"a foreground job takes {nodes} for {run_s:.1f} s"

    def _strike(
        self, change: Change, roles: tuple[str, ...], act: Callable[[psutil.Process], None], victims: int = 1
    ) -> str:
        members = self._site.client.trainer(self._trainer).nodes
        if not members:
            return f"{change.kind}: no member is there"
        first = int(change.where * len(members))
        chosen = [members[(first + number) % len(members)] for number in range(min(victims, len(members)))]
        hit = [found for found in self._site.fragments() if found.node in chosen and found.role in roles]
        for found in sorted(hit, key=lambda found: found.role):
            with contextlib.suppress(psutil.NoSuchProcess):
                act(found.process)
        return f"{change.kind} {first} of {len(members)} ({', '.join(_names(hit)) or 'already gone'})"


def _names(hit: list[FragmentProcess]) -> list[str]:
    return [f"{found.node} {found.role}" for found in hit]


def _pause(process: psutil.Process) -> None:
    """Stop a process for less time than any silence that counts as hanging."""
    process.suspend()
    time.sleep(_PAUSE_S)
    process.resume()


def _slow_down(process: psutil.Process) -> None:
    """Slow a process down to a third of the time by stopping and continuing it."""
    until_s = time.monotonic() + _SLOW_S
    while time.monotonic() < until_s:
        process.suspend()
        time.sleep(_SLOW_STOPPED_S)
        process.resume()
        time.sleep(_SLOW_RUNNING_S)
