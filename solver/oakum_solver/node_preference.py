"""Orders idle nodes by how long they are expected to stay idle, learnt from the nodes that foreground jobs took.

Schedulers do not choose nodes at random: they fill by number, by weight or by topology, or take the node that was
free the longest. A *taking* is one moment at which foreground jobs took some of the idle nodes. Three rankings
compete, and each is scored on every taking before it learns from it:

- *place*: the node's position in the cluster's list.
- *record*: how often the node was taken while idle, relative to what a random choice would have taken. When k of m
  idle nodes are taken, each of the m adds k / m to its expected count, as in the log-rank test (Mantel, Cancer
  Chemotherapy Reports 50(3), 1966).
- *age*: since when the node has been idle.

The score of a ranking is the share of pairs (taken node, node left) that it orders rightly, which is the area
under its ROC curve (Hanley and McNeil, Radiology 143(1), 1982); a random ranking scores 1/2. A ranking below 1/2
is read backwards. The ranking furthest from 1/2 orders the nodes, and the next one orders those that it leaves
tied. Older takings count less, so the order follows a scheduler that changes its habits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Nodes = NDArray[np.int64]
Floats = NDArray[np.float64]

_MEMORY = 100.0
"""Number of later takings after which the weight of a taking has fallen to 1/e."""
_DOUBT = 2.0
"""Takings added to a node's observed and expected counts, so that a node with few takings ranks as average."""
_FIRST_GUESS, _GUESSES = 0.6, 2.0
"""Initial score of `place`, and the number of takings that it weighs: most schedulers fill from the beginning of
the list."""
_PLACE, _RECORD, _AGE = range(3)


@dataclass
class NodePreference:
    """Learns from takings in which order to prefer nodes; nodes are numbered 0 to `num_nodes` - 1 as in the
    cluster's list."""

    num_nodes: int
    observed: Floats = field(init=False, repr=False)
    expected: Floats = field(init=False, repr=False)
    """For each node, how often it was taken (`observed`) and how often a random choice would have taken it."""
    right: Floats = field(init=False, repr=False)
    """For each ranking, the weighted sum of its scores over all takings."""
    takings: float = field(init=False, default=_GUESSES)

    def __post_init__(self) -> None:
        self.observed, self.expected = np.zeros(self.num_nodes), np.zeros(self.num_nodes)
        self.right = np.full(3, 0.5 * _GUESSES)
        self.right[_PLACE] = _FIRST_GUESS * _GUESSES

    def learn(self, idle: Nodes, taken: NDArray[np.bool_], idle_since_s: Floats) -> None:
        """Learn from one taking: of the nodes `idle`, foreground jobs took those where `taken` is true.

        All arrays have the shape (idle nodes,). A taking of all idle nodes, or of none, teaches nothing.
        """
        num_idle, num_taken = len(idle), int(taken.sum())
        if not 0 < num_taken < num_idle:
            return
        rankings = self._rankings(idle, idle_since_s)
        keep = 1.0 - 1.0 / _MEMORY
        self.right = keep * self.right + [_share_in_order(ranking, taken) for ranking in rankings]
        self.takings = keep * self.takings + 1.0
        self.observed *= keep
        self.expected *= keep
        self.observed[idle[taken]] += 1.0
        self.expected[idle] += num_taken / num_idle

    def order(self, idle: Nodes, idle_since_s: Floats) -> Nodes:
        """Positions in `idle`, sorted so that the node expected to stay idle longest comes first.

        Of nodes that no ranking tells apart, the last in the cluster's list comes first.
        """
        belief = self.right / self.takings - 0.5
        towards_staying = np.array(self._rankings(idle, idle_since_s)) * np.sign(belief)[:, None]
        by_weakest = np.argsort(np.abs(belief), kind="stable")
        return np.lexsort((-idle, *(-towards_staying[by_weakest])))

    def _rankings(self, idle: Nodes, idle_since_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Each ranking's score of each node; a higher score means that the node is expected to stay idle
        longer."""
        often = (self.observed[idle] + _DOUBT) / (self.expected[idle] + _DOUBT)
        return idle.astype(np.float64), -often, idle_since_s


def _share_in_order(ranking: Floats, taken: NDArray[np.bool_]) -> float:
    """Share of the pairs (taken node, node left) in which the taken node ranks lower; ties count half."""
    ranking_of_left = np.sort(ranking[~taken])
    lower = len(ranking_of_left) - np.searchsorted(ranking_of_left, ranking[taken], side="right")
    not_higher = len(ranking_of_left) - np.searchsorted(ranking_of_left, ranking[taken], side="left")
    return float((lower + not_higher).sum()) / (2.0 * len(ranking_of_left) * int(taken.sum()))
