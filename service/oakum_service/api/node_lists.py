"""Lists of nodes that were answered lately, so that the next answer need tell only what has changed."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from oakum_service.api.schemas.cluster import NodeList, NodeView

_KEPT = 40
"""Answers that are remembered. Pages ask every few seconds, each from its own last answer on."""


class NodeLists:
    """The newest answers by their version. A process knows only its own; others' versions get the whole list."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._mark = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, tuple[NodeView, ...]] = OrderedDict()
        self._number = 0

    def answer(self, present: NodeList, since: str | None) -> NodeList:
        """`present` with a version; only the nodes that differ from the answer of version `since`, where it is
        remembered."""
        nodes = tuple(present.nodes)
        with self._lock:
            earlier = None if since is None else self._answers.get(since)
            version = self._version_of(nodes)
        if earlier is None:
            return present.model_copy(update={"version": version})
        before = {node.name: node for node in earlier}
        changed = [node for node in nodes if before.get(node.name) != node]
        gone = sorted(before.keys() - {node.name for node in nodes})
        return present.model_copy(
            update={"version": version, "is_difference": True, "nodes": changed, "gone": gone}
        )

    def _version_of(self, nodes: tuple[NodeView, ...]) -> str:
        newest = next(reversed(self._answers), None)
        if newest is not None and self._answers[newest] == nodes:
            return newest
        self._number += 1
        version = f"{self._mark}-{self._number}"
        self._answers[version] = nodes
        while len(self._answers) > self._kept:
            self._answers.popitem(last=False)
        return version
