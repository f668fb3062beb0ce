"""Splits a backward pass in two: gradients of the inputs first, gradients of the weights later.

The idea is that of "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241). In the autograd graph, the *trunk* are
the nodes on paths from the outputs to the inputs. At some of its nodes, such as a linear layer's product, paths to
weights branch off. The first part runs along the trunk and keeps the gradients that arrive at branching nodes; the
second part starts at these nodes and runs down the branches alone. Both together take as long as a whole backward
pass, if each node can compute the gradient of one input without the others. Most of torch's nodes can; a user's
own `autograd.Function` does all its work twice. A layer compiled by torch.compile cannot be split.

If branches are not separate, or a layer recomputes itself during backward (a checkpoint), the second part is one
pass through the trunk and all branches.
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
class _WeightsPass:
    """One of the backward passes that make up the second part: the weights that get gradients, and the nodes and
    gradients from which it starts."""

    weights: dict[nn.Parameter, None] = field(default_factory=dict)
    arrived: dict[Node, Gradients] = field(default_factory=dict)
    """Node of the trunk -> the gradients that arrived there in the first part."""
    beside: list[tuple[GradientEdge, torch.Tensor]] = field(default_factory=list)
    """Outputs that do not depend on the inputs, with their gradients."""

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
    """What is left of a split backward pass after its first part; `run` computes the weights' gradients."""

    def __init__(self, passes: Sequence[_WeightsPass], gradients: Sequence[torch.Tensor]) -> None:
        """`gradients` are the results of the first part. Callers may still hold them, so a weight's gradient that
        shares their memory is copied."""
        self._passes = passes
        self._others = {_memory(gradient) for gradient in gradients}

    def run(self) -> None:
        """Compute the weights' gradients and add them to `p.grad`. To be called once."""
        new = [weight for one in self._passes for weight in one.weights if weight.grad is None]
        for one in self._passes:
            one.run()
        if not new:
            return
        # A gradient that came through views alone shares its memory with the first part's results: adding to it
        # would change them.
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
    """Run the first part; returns (gradients of `inputs`, the second part).

    `outputs` all require gradients; `seeds` are their gradients, None for a loss. `inputs` are leaves that require
    gradients; theirs are zeros where no path leads to them. Exceptions of a user's code pass through.
    """
    seeds = [torch.ones_like(output) for output in outputs] if seeds is None else list(seeds)
    edges = [get_gradient_edge(output) for output in outputs]
    graph = _Graph(edge.node for edge in edges)
    trunk = graph.above(_node(leaf) for leaf in inputs)
    trained = [weight for weight in weights if weight.requires_grad]
    starts = {weight: set(graph.starts(_node(weight), trunk)) for weight in trained}
    arrived: dict[Node, Gradients] = {}
    recomputation = _GraphDetector()
    hooks = [node.register_prehook(_keeping(arrived, node)) for node in set().union(*starts.values())]
    hooks += [edge.node.register_prehook(recomputation.begin) for edge in edges]
    try:
        with recomputation:
            input_gradients = _grad(outputs, inputs, seeds, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    gradients = tuple(
        torch.zeros_like(leaf) if g is None else g for g, leaf in zip(input_gradients, inputs, strict=True)
    )
    outside_trunk = [(edge, seed) for edge, seed in zip(edges, seeds, strict=True) if edge.node not in trunk]
    if outside_trunk or recomputation.seen:
        passes = [_WeightsPass(dict.fromkeys(trained), arrived, outside_trunk)] if trained else []
    else:
        passes = list(_separate_passes(starts, arrived))
    return gradients, SecondPart(passes, [*gradients, *seeds])


def _separate_passes(
    starts: Mapping[nn.Parameter, set[Node]], arrived: Mapping[Node, Gradients]
) -> Iterator[_WeightsPass]:
    """The passes of the second part: one for each node whose weights no other node leads to, and one for all other
    nodes together."""
    shared: set[Node] = set().union(*(nodes for nodes in starts.values() if len(nodes) > 1))
    passes: dict[Node | None, _WeightsPass] = {}
    for weight, nodes in starts.items():
        for node in nodes & arrived.keys():
            one = passes.setdefault(None if node in shared else node, _WeightsPass())
            one.arrived[node] = arrived[node]
            one.weights[weight] = None
    yield from passes.values()


class _Graph:
    """The part of an autograd graph that is reachable from given nodes.

    It references its nodes, because torch may otherwise make new Python objects for them.
    """

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
        """All nodes from which one of `leaves` can be reached, including the leaves reached."""
        reached = {leaf for leaf in leaves if leaf in self._parents}
        waiting = list(reached)
        while waiting:
            for parent in self._parents[waiting.pop()]:
                if parent not in reached:
                    reached.add(parent)
                    waiting.append(parent)
        return reached

    def starts(self, leaf: Node, trunk: set[Node]) -> Iterator[Node]:
        """The nodes of `trunk` from which a path outside the trunk leads to `leaf`."""
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


class _GraphDetector(TorchFunctionMode):
    """Context that detects that a backward pass builds an autograd graph, as a layer does that recomputes its
    activations (a checkpoint)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self._has_begun = False

    def begin(self, _: Gradients) -> None:
        """Called when the backward pass reaches its first node: only graphs that are built from now on count."""
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
