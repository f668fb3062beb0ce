"""The algorithm of each layer that together train fastest within the memory that is left.

    minimise    sum_kl x_kl T_kl
    subject to  sum_kl x_kl M_kl <= left,      sum_l x_kl = 1 for each layer k,      x_kl binary

(Zou et al., arXiv:1709.06622, section on the mini-batch.) M_kl is what the option keeps until the backward pass
and its buffer. Where layers compute one after the other and share one workspace, only the largest buffer counts:

    sum_kl x_kl kept_kl + max_kl x_kl buffer_kl <= left.

That is the first programme again for each size of the workspace: options with larger buffers are out, and the
workspace is taken from what is left. Two methods that share nothing solve it: an exact dynamic programme over the
layers, whose states are the choices that no other beats in both time and memory, and CBC through PuLP.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import pulp

from oakum_solver.advice.layer_options import LayerChoice, LayerOption, Layers, chosen, refuse_empty
from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError

_MOST_STATES = 200_000
_COEFFICIENT = 1e4
"""Largest coefficient of the objective: CBC ignores absolute differences below 1e-5."""
_Indexed = list[list[tuple[int, LayerOption, int]]]
"""Of each layer its options that are in: index, option, and bytes that count against what is left."""


class TooManyStatesError(Exception):
    """The dynamic programme would keep more states than it may."""


def choose_by_dynamic_programme(layers: Layers, left_bytes: int, *, shared: bool = False) -> LayerChoice | None:
    """The fastest choice within `left_bytes`, proven; None if none fits.

    `shared` says that layers use one workspace in turn. Raises `TooManyStatesError` where more than 200,000
    choices would have to be compared, and `ProblemError` for a layer without options.
    """
    return _choose(_by_states, layers, left_bytes, shared=shared)


def choose_by_milp(
    layers: Layers, left_bytes: int, *, shared: bool = False, time_limit_s: float = 10.0
) -> LayerChoice | None:
    """The fastest choice within `left_bytes` that CBC finds; None if none fits.

    Raises `MilpError` where CBC gives no usable answer in `time_limit_s` seconds for one size of the workspace,
    and `ProblemError` for a layer without options.
    """
    return _choose(lambda open_, spare: _by_cbc(open_, spare, time_limit_s), layers, left_bytes, shared=shared)


def _choose(
    solve: Callable[[_Indexed, int], list[int] | None], layers: Layers, left_bytes: int, *, shared: bool
) -> LayerChoice | None:
    refuse_empty(layers)
    if not shared:
        options = solve(
            [[(i, o, o.kept_bytes + o.buffer_bytes) for i, o in enumerate(layer)] for layer in layers], left_bytes
        )
        return None if options is None else chosen(layers, options, shared=False)
    best: LayerChoice | None = None
    sizes = {option.buffer_bytes for layer in layers for option in layer} | {0}
    for workspace in sorted(sizes, reverse=True):
        open_ = [
            [(i, o, o.kept_bytes) for i, o in enumerate(layer) if o.buffer_bytes <= workspace] for layer in layers
        ]
        if not all(open_):
            break  # nor are all layers possible with a smaller workspace
        quickest = math.fsum(min(option.seconds for _, option, _ in layer) for layer in open_)
        if best is not None and quickest >= best.seconds:
            break  # nor is a smaller workspace faster
        options = solve(open_, left_bytes - workspace)
        if options is not None:
            choice = chosen(layers, options, shared=True)
            best = choice if best is None or choice.seconds < best.seconds else best
    return best


def _by_states(layers: _Indexed, left_bytes: int) -> list[int] | None:
    """The fastest option of each layer, as indexes, whose bytes fit in `left_bytes`; None if none fits. Keeps,
    layer by layer, the combinations that no other beats in both time and memory (Nemhauser and Ullmann,
    Management Science 15(9), 1969). Raises `TooManyStatesError`."""
    to_come = [0] * (len(layers) + 1)  # the least that the layers from here on take
    for number in reversed(range(len(layers))):
        to_come[number] = to_come[number + 1] + min(nbytes for _, _, nbytes in layers[number])
    states: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
    for number, layer in enumerate(layers):
        room = left_bytes - to_come[number + 1]
        grown = heapq.merge(
            *(
                [(s + option.seconds, m + nbytes, (*path, index)) for s, m, path in states if m + nbytes <= room]
                for index, option, nbytes in layer
            )
        )
        states = []
        for state in grown:  # by seconds: only what takes less memory than all before is of use
            if not states or state[1] < states[-1][1]:
                states.append(state)
        if len(states) > _MOST_STATES:
            raise TooManyStatesError(f"{len(states)} choices of the first {number + 1} layers are undominated")
        if not states:
            return None
    return list(states[0][2])


def _by_cbc(layers: _Indexed, left_bytes: int, time_limit_s: float) -> list[int] | None:
    least = [min(nbytes for _, _, nbytes in layer) for layer in layers]
    spare = left_bytes - sum(least)
    if spare < 0:
        return None
    open_ = [
        [(i, o, n - low) for i, o, n in layer if n - low <= spare]
        for layer, low in zip(layers, least, strict=True)
    ]
    if not open_:
        return []
    quickest = [min(o.seconds for _, o, _ in layer) for layer in open_]
    losses = [[o.seconds - q for _, o, _ in layer] for layer, q in zip(open_, quickest, strict=True)]
    model, variables = _model(open_, losses, spare)
    answer = run_cbc(model, time_limit_s)
    picked = [[k for k, x in enumerate(layer) if answer.values[x.name] > 0.5] for layer in variables]
    if any(len(picks) != 1 for picks in picked):
        raise MilpError("the solver's answer does not give each layer one algorithm")
    if not answer.optimal:
        raise MilpError(f"CBC has not proven a choice of algorithms in {time_limit_s:.3g} s")
    if sum(layer[picks[0]][2] for layer, picks in zip(open_, picked, strict=True)) > spare:
        raise MilpError("the solver's answer takes more memory than is left")
    return [layer[picks[0]][0] for layer, picks in zip(open_, picked, strict=True)]


def _model(
    layers: _Indexed, losses: list[list[float]], spare: int
) -> tuple[pulp.LpProblem, list[list[pulp.LpVariable]]]:
    """Maximise the time saved, in a unit that makes the largest loss 10,000, within 1,000 shares of `spare`."""
    scale = _COEFFICIENT / max(max(map(max, losses)), 1e-300)
    model = pulp.LpProblem("algorithms", pulp.LpMaximize)
    variables = [
        [model.add_variable(f"x{k}_{i}", cat=pulp.LpBinary) for i in range(len(layer))]
        for k, layer in enumerate(layers)
    ]
    pairs = [
        (x, loss, nbytes)
        for layer, xs, lost in zip(layers, variables, losses, strict=True)
        for (_, _, nbytes), x, loss in zip(layer, xs, lost, strict=True)
    ]
    model += pulp.LpAffineExpression({x: -scale * loss for x, loss, _ in pairs})
    for xs in variables:
        model += pulp.LpAffineExpression(dict.fromkeys(xs, 1)) == 1
    if used := {x: 1000.0 * nbytes / spare for x, _, nbytes in pairs if nbytes}:
        model += pulp.LpAffineExpression(used) <= 1000.0
    return model, variables
