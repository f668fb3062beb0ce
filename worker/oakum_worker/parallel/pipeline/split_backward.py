"""A backward pass in two parts: gradients of the inputs first, those of the weights later (zero bubble).

The way from the outputs to the inputs is the graph's trunk. Off it, at nodes such as a linear layer's product,
branch the ways to the weights. The first part goes along the trunk, and what arrives at a branching node is kept;
the second starts anew at each of these nodes, and goes down the branches alone. Together both take what a whole
backward pass does, as far as nodes can do one without the other: torch's own can, a node of a user's own
`autograd.Function` or of a compiled layer does all of its work both times.

The idea of splitting the pass is of "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]


@dataclass
class _Branching:
    """Weights, and the nodes of the trunk that lead to them; other groups share neither."""

    weights: list[nn.Parameter]
    nodes: dict[Node, None]
    arrived: dict[Node, Gradients] = field(default_factory=dict)
    """What came to each of the nodes, by the first part."""


class SplitBackward:
    """The second part of a backward pass, the first of which has been gone through."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        seeds: Sequence[torch.Tensor] | None,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[nn.Parameter],
    ) -> None:
        """Go through the first part: `gradients` are then those of the inputs, zeros where nothing leads to them.

        `outputs` all require gradients, `seeds` are theirs, None for a loss; `inputs` are leaves that require
        gradients. What a user's own code raises within backward passes through.
        """
        seeds = [torch.ones_like(output) for output in outputs] if seeds is None else list(seeds)
        roots = [_node(output) for output in outputs]
        graph = _Graph(roots)
        trunk = graph.above(_node(leaf) for leaf in inputs)
        self._groups = graph.groups(trunk, weights)
        # Where an output does not depend on the inputs, its gradient is that of a branch from the beginning.
        beside = [number for number, root in enumerate(roots) if root not in trunk]
        self._beside = [(outputs[number], seeds[number]) for number in beside]
        self._beside_weights = graph.below({roots[number] for number in beside}, weights)
        hooks = [
            node.register_prehook(_keeping(group.arrived, node)) for group in self._groups for node in group.nodes
        ]
        try:
            self.gradients: Tensors = torch.autograd.grad(
                outputs, inputs, seeds, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        finally:
            for hook in hooks:
                hook.remove()

    def weights(self) -> None:
        """Go through the second part: add to the weights' gradients."""
        if self._beside_weights:
            outputs, seeds = zip(*self._beside, strict=True)
            torch.autograd.backward(outputs, seeds, retain_graph=True, inputs=self._beside_weights)
        for group in self._groups:
            _descend(group)


def _descend(group: _Branching) -> None:
    starts, gradients = [], []
    for node, arrived in group.arrived.items():
        for number, gradient in enumerate(arrived):
            if gradient is not None:
                starts.append(GradientEdge(node, number))
                gradients.append(gradient)
    if not starts:
        return
    # Of several nodes one may lead to another: what has arrived there is known, and must not come once more.
    several = len(group.arrived) > 1
    hooks = [node.register_prehook(_replacing(arrived)) for node, arrived in group.arrived.items() if several]
    try:
        # A branch may be one of several groups' ways, where they pass through each other's nodes.
        torch.autograd.backward(starts, gradients, retain_graph=True, inputs=group.weights)
    finally:
        for hook in hooks:
            hook.remove()


class _Graph:
    """The nodes below some outputs. Its nodes' identity holds for as long as it is referenced."""

    def __init__(self, roots: Iterable[Node]) -> None:
        self._parents: dict[Node, list[Node]] = {root: [] for root in roots}
        waiting = list(self._parents)
        while waiting:
            node = waiting.pop()
            for child, _ in node.next_functions:
                if child is None:
                    continue
                if child not in self._parents:
                    self._parents[child] = []
                    waiting.append(child)
                self._parents[child].append(node)

    def above(self, leaves: Iterable[Node]) -> set[Node]:
        """All nodes from which one of the leaves is reached, and those leaves."""
        found = {leaf for leaf in leaves if leaf in self._parents}
        waiting = list(found)
        while waiting:
            for parent in self._parents[waiting.pop()]:
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found

    def below(self, roots: set[Node], weights: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """The weights that are reached from one of the roots."""
        return [weight for weight in weights if roots & self.above([_node(weight)])] if roots else []

    def groups(self, trunk: set[Node], weights: Sequence[nn.Parameter]) -> list[_Branching]:
        """The weights by the nodes of the trunk from which their branches start."""
        group_of: dict[Node, _Branching] = {}
        for weight in weights:
            group = _Branching([weight], dict.fromkeys(self._starts(_node(weight), trunk)))
            for other in {id(group_of[node]): group_of[node] for node in group.nodes if node in group_of}.values():
                group = _Branching(other.weights + group.weights, other.nodes | group.nodes)
            group_of |= dict.fromkeys(group.nodes, group)
        return list({id(group): group for group in group_of.values()}.values())

    def _starts(self, leaf: Node, trunk: set[Node]) -> Iterator[Node]:
        """The nodes of the trunk from which a branch leads to the leaf."""
        seen, waiting = {leaf}, [leaf] if leaf in self._parents else []
        while waiting:
            for parent in self._parents[waiting.pop()]:
                if parent in seen:
                    continue
                seen.add(parent)
                if parent in trunk:
                    yield parent
                else:
                    waiting.append(parent)


def _node(leaf: torch.Tensor) -> Node:
    return get_gradient_edge(leaf).node


def _keeping(arrived: dict[Node, Gradients], node: Node) -> Callable[[Gradients], None]:
    def keep(gradients: Gradients) -> None:
        arrived[node] = gradients

    return keep


def _replacing(gradients: Gradients) -> Callable[[Gradients], Gradients]:
    return lambda _: gradients
