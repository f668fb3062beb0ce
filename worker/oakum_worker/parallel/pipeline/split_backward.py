"""A backward pass in two parts: gradients of the inputs first, those of the weights later (zero bubble).

The way from the outputs to the inputs is the graph's trunk. Off it, at nodes such as a linear layer's product,
branch the ways to the weights. The first part goes along the trunk, and what arrives at a branching node is kept;
the second starts anew at each of these nodes, and goes down the branches alone. Together both take what a whole
backward pass does, as far as nodes can do one without the other: most of torch's own can, a node of a user's own
`autograd.Function` does all of its work both times. A layer compiled by torch.compile cannot be split at all.

Where branches are not apart, or a layer computes itself again within backward (a checkpoint), the second part is
one pass through the trunk and all branches.

The idea of splitting the pass is of "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from oakum_worker.function_mode import call, opened

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]

_grad: Callable[..., Gradients] = opened(torch.autograd.grad)


@dataclass
class _Pass:
    """Weights, and where to start from to reach them."""

    weights: dict[nn.Parameter, None] = field(default_factory=dict)
    arrived: dict[Node, Gradients] = field(default_factory=dict)
    """What came to nodes of the trunk, by the first part."""
    beside: list[tuple[GradientEdge, torch.Tensor]] = field(default_factory=list)
    """Outputs that do not depend on the inputs, and their gradients."""

    def run(self) -> None:
        starts = [edge for edge, _ in self.beside]
        gradients = [gradient for _, gradient in self.beside]
        for node, arrived in self.arrived.items():
            for number, gradient in enumerate(arrived):
                if gradient is not None:
                    starts.append(GradientEdge(node, number))
                    gradients.append(gradient)
        if not starts:
            return
        # What has arrived at a node is known: it must not come once more from another one, nor go through the
        # hooks of a user once more.
        hooks = [node.register_prehook(_replacing(arrived)) for node, arrived in self.arrived.items()]
        try:
            # The graph is others' too: that of the next pass, or of who measures it.
            torch.autograd.backward(starts, gradients, retain_graph=True, inputs=list(self.weights))
        finally:
            for hook in hooks:
                hook.remove()


class SecondPart:
    """What is left of a backward pass."""

    def __init__(self, passes: Sequence[_Pass], gradients: Sequence[torch.Tensor]) -> None:
        """`gradients` are what others may hold of the first part."""
        self._passes = passes
        self._others = {_memory(gradient) for gradient in gradients}

    def run(self) -> None:
        """Add to the weights' gradients."""
        new = [weight for one in self._passes for weight in one.weights if weight.grad is None]
        for one in self._passes:
            one.run()
        if not new:
            return
        # A gradient that came through views alone is still what arrived: adding to it would change that.
        held = self._others | {_memory(g) for one in self._passes for a in one.arrived.values() for g in a}
        for weight in new:
            if weight.grad is not None and _memory(weight.grad) in held - {None}:
                weight.grad = weight.grad.clone()


def first_part(
    outputs: Sequence[torch.Tensor],
    seeds: Sequence[torch.Tensor] | None,
    inputs: Sequence[torch.Tensor],
    weights: Sequence[nn.Parameter],
) -> tuple[Tensors, SecondPart]:
    """The gradients of the inputs, zeros where nothing leads to them, and what is left to do.

    `outputs` all require gradients, `seeds` are theirs, None for a loss; `inputs` are leaves that require
    gradients. What a user's own code raises within backward passes through.
    """
    seeds = [torch.ones_like(output) for output in outputs] if seeds is None else list(seeds)
    edges = [get_gradient_edge(output) for output in outputs]
    graph = _Graph(edge.node for edge in edges)
    trunk = graph.above(_node(leaf) for leaf in inputs)
    trained = [weight for weight in weights if weight.requires_grad]
    starts = {weight: set(graph.starts(_node(weight), trunk)) for weight in trained}
    arrived: dict[Node, Gradients] = {}
    recomputation = _Recomputation()
    hooks = [node.register_prehook(_keeping(arrived, node)) for node in set().union(*starts.values())]
    hooks += [edge.node.register_prehook(recomputation.begin) for edge in edges]
    try:
        with recomputation:
            found = _grad(outputs, inputs, seeds, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    gradients = tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, inputs, strict=True))
    beside = [(edge, seed) for edge, seed in zip(edges, seeds, strict=True) if edge.node not in trunk]
    if beside or recomputation.seen:
        passes = [_Pass(dict.fromkeys(trained), arrived, beside)] if trained else []
    else:
        passes = list(_apart(starts, arrived))
    return gradients, SecondPart(passes, [*gradients, *seeds])


def _apart(starts: Mapping[nn.Parameter, set[Node]], arrived: Mapping[Node, Gradients]) -> Iterator[_Pass]:
    """A pass for each node from which weights are reached that no other leads to, and one for all others."""
    shared: set[Node] = set().union(*(nodes for nodes in starts.values() if len(nodes) > 1))
    passes: dict[Node | None, _Pass] = {}
    for weight, nodes in starts.items():
        for node in nodes & arrived.keys():
            one = passes.setdefault(None if node in shared else node, _Pass())
            one.arrived[node] = arrived[node]
            one.weights[weight] = None
    yield from passes.values()


class _Graph:
    """The nodes below some others. Their identity holds for as long as it is referenced."""

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

    def starts(self, leaf: Node, trunk: set[Node]) -> Iterator[Node]:
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


class _Recomputation(TorchFunctionMode):
    """Sees whether something within a backward pass computes with a graph, as checkpoints do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self._has_begun = False

    def begin(self, _: Gradients) -> None:
        """The pass has come to a node: what was before it does not count."""
        self._has_begun = True

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= self._has_begun and torch.is_grad_enabled()
        return call(self, function, args, kwargs or {})


def _node(leaf: torch.Tensor) -> Node:
    return get_gradient_edge(leaf).node


def _memory(tensor: torch.Tensor | None) -> int | None:
    if tensor is None or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr()


def _keeping(arrived: dict[Node, Gradients], node: Node) -> Callable[[Gradients], None]:
    def keep(gradients: Gradients) -> None:
        arrived[node] = gradients

    return keep


def _replacing(gradients: Gradients) -> Callable[[Gradients], Gradients]:
    return lambda _: gradients
