"""The twin beside the replay of the same log, and where the difference comes from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from oakum_solver.replay.result import ReplayResult
from twin.node_time import Use
from twin.site import TwinResult


@dataclass(frozen=True)
class Comparison:
    """What the twin and the replay made of one log with the same trainers, rules and costs."""

    log: str
    trainers: int
    twin: TwinResult
    replay: ReplayResult

    @property
    def bound(self) -> float:
        """What the same trainers would have achieved had rescaling been free."""
        return self.replay.zero_cost_bound * self.replay.achievable

    @property
    def utility(self) -> float:
        """What the twin has achieved, as a share of the bound."""
        return _share(self.twin.achieved, self.bound)

    @property
    def replayed_utility(self) -> float:
        """What the replay has achieved, as a share of the bound."""
        return _share(self.replay.achieved, self.bound)

    @property
    def of_replay(self) -> float:
        """What the twin has achieved, as a share of what the replay has."""
        return _share(self.twin.achieved, self.replay.achieved)

    @property
    def causes(self) -> dict[Use, tuple[float, float]]:
        """What the idle node-time went into: its share in the twin and in the replay."""
        losses, idle = self.replay.losses, self.replay.idle_node_hours
        replayed = {
            Use.PRODUCTIVE: self.replay.productive_node_hours,
            Use.STALL: losses.grow + losses.shrink + losses.preemption,
            Use.START_UP: losses.startup,
            Use.UNALLOCATED: losses.unallocated,
        }
        hours = self.twin.node_hours
        return {use: (_share(hours[use], idle), _share(replayed.get(use, 0.0), idle)) for use in Use}

    def as_document(self) -> dict[str, Any]:
        """Everything, as a JSON document."""
        twin = dataclasses.asdict(self.twin)
        twin["node_hours"] = {use.value: hours for use, hours in self.twin.node_hours.items()}
        return {
            "log": self.log,
            "nodes": self.replay.nodes,
            "hours": self.replay.hours,
            "events": self.replay.events,
            "idle_node_hours": self.replay.idle_node_hours,
            "trainers": self.trainers,
            "utility": self.utility,
            "replayed_utility": self.replayed_utility,
            "of_replay": self.of_replay,
            "causes": {use.value: {"twin": mine, "replay": its} for use, (mine, its) in self.causes.items()},
            "replay_rescales": self.replay.rescales,
            "twin": twin,
        }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
