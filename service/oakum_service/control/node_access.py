"""Which idle nodes a trainer may have by what its spec asks the scheduler for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oakum_service.documents.node import Node
from oakum_worker.spec import TrainerSpec


@dataclass(frozen=True)
class NodeAccess:
    """Labels nodes so that those with one label are open to the same trainers."""

    by_label: Mapping[str, Node]
    """Label -> one of the nodes that have it."""
    asked: frozenset[str]
    """The features that some trainer asks for; others tell no nodes apart."""

    @classmethod
    def among(cls, nodes: Iterable[Node], specs: Iterable[TrainerSpec]) -> NodeAccess:
        """The labels of the nodes that foreground jobs leave, where trainers of these specs want nodes."""
        features = frozenset(feature for spec in specs for feature in spec.slurm.features)
        left = (node for node in nodes if node.is_left)
        return cls({_label(node, features): node for node in left}, features)

    def label(self, node: Node) -> str:
        """The node's label."""
        return _label(node, self.asked)

    def labels_for(self, spec: TrainerSpec) -> frozenset[str] | None:
        """Labels of the nodes that a trainer may have; None if it may have any."""
        slurm = spec.slurm
        labels = frozenset(
            label for label, node in self.by_label.items() if slurm.admits(node.features, node.reservation)
        )
        return None if len(labels) == len(self.by_label) else labels


def _label(node: Node, asked: frozenset[str]) -> str:
    features = "&".join(sorted(asked.intersection(node.features)))
    return f"{features}@{node.reservation}" if node.reservation else features
