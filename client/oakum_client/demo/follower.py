"""Follows the demonstration's trainers and their checkpoints, for the page."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oakum_client.demo.chain import DemoRole, TrainerChain
from oakum_client.demo.networks import Network, NetworkSource
from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ClientError
from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.standing import Status
from oakum_service.states import TrainerState
from oakum_worker.errors import WorkerError

EVERY_S = 0.5


@dataclass(frozen=True)
class FollowedState:
    """What is known of trainers and networks at one moment; each turn replaces it as a whole."""

    state: bytes
    """The JSON document that the page polls."""
    networks: Mapping[DemoRole, Network] = field(default_factory=dict)


class Follower:
    """Looks at trainers and checkpoints, again and again. With a chain it asks a service for the trainers;
    without one it only reads the given folders."""

    def __init__(
        self,
        client: OakumClient | None,
        chain: TrainerChain | None,
        folders: Mapping[DemoRole, Path] | None = None,
    ) -> None:
        self._client, self._chain = client, chain
        self._sources = {role: NetworkSource(role, folder) for role, folder in (folders or {}).items()}
        self._trainers: dict[DemoRole, TrainerView] = {}
        self.known = FollowedState(json.dumps({"fault": None, "trainers": [], "networks": {}}).encode())
        self._ended = threading.Event()

    def turn(self) -> None:
        """Look at trainers and checkpoints once. An error becomes a part of what is known, since the next turn
        may succeed."""
        fault = self._ask_service()
        networks, faults = {}, {}
        for role, source in self._sources.items():
            try:
                network = source.newest()
            except (WorkerError, OSError) as error:
                network, faults[role] = self.known.networks.get(role), str(error)
            if network is not None:
                networks[role] = network
        state = {
            "fault": fault,
            "trainers": [_summary(role, view) for role, view in sorted(self._trainers.items(), key=_order)],
            "networks": {role: {"step": n.step, "tag": n.tag} for role, n in networks.items()},
            "faults": faults,
        }
        self.known = FollowedState(json.dumps(state, separators=(",", ":")).encode(), networks)

    def run(self) -> None:
        """Take turns until `end`."""
        while not self._ended.is_set():
            self.turn()
            self._ended.wait(EVERY_S)

    def end(self) -> None:
        """Let `run` return after its present turn."""
        self._ended.set()

    def _ask_service(self) -> str | None:
        """Bring the known trainers and folders up to date. Returns a text about what has prevented that; empty
        if nothing has."""
        if self._client is None or self._chain is None:
            return None
        try:
            self._trainers = self._chain.turn(self._client)
        except ClientError as error:
            return str(error)
        for role, view in self._trainers.items():
            folder = Path(view.checkpoint_folder)
            if not view.checkpoint_folder or (role in self._sources and self._sources[role].folder == folder):
                continue
            self._sources[role] = NetworkSource(role, folder)
        return None


def _order(item: tuple[DemoRole, TrainerView]) -> int:
    return list(DemoRole).index(item[0])


def _summary(role: DemoRole, view: TrainerView) -> dict[str, Any]:
    return {
        "role": role,
        "name": view.name,
        "status": view.status,
        "ended": view.state.ended,
        "step": view.step,
        "total_steps": view.total_steps,
        "loss": view.loss,
        "metrics": view.metrics,
        "nodes": len(view.nodes),
        "hint": _hint(view),
    }


def _hint(view: TrainerView) -> str:
    """Text that says why no weights of the trainer can be read, and what to do; empty where nothing is wrong."""
    if view.is_private:
        return f"{view.name} is another user's: cancel or rename yours, or give folders of checkpoints."
    if view.may_retry:
        return f"{view.reason} `oakum retry {view.name}` lets it go on; `oakum demo digits --anew` begins anew."
    if view.state is TrainerState.DIVERGED:
        return f"{view.reason} `oakum demo digits --anew` begins anew."
    if view.checkpoint_step is not None and not Path(view.checkpoint_folder).is_dir():
        return f"Its checkpoints are in {view.checkpoint_folder}, not on this machine: run the command there."
    trains = view.state.ended or view.status in (Status.STARTING, Status.RUNNING)
    return "" if trains else view.reason
