"""Replacements for torch's functions that draw random numbers: equal distributions, drawn sample by sample.

Each function takes the keyed bits, then the arguments of the torch function that it replaces. It is called while
the function mode is off, so the torch functions that it calls are torch's own. It returns `NotImplemented` for
arguments that it has no replacement for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from oakum_worker.randomness.batch_dims import Role
from oakum_worker.randomness.keyed import KeyedBits, normal, threshold, uniform
from oakum_worker.randomness.recurrent import one_layer_at_a_time

# Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", 2017: minus lambda times alpha.
_SELU_FLOOR = -1.7580993408473766
_LARGEST_RANGE = 1 << 31
RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""Torch's functions of recurrent layers, which draw where they drop between layers."""


def _dropout(keyed: KeyedBits, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.dropout(input, p, train)
    return _drop(input, _role(input, "activation"), keyed, input.shape, p)


def _functional_dropout(
    keyed: KeyedBits, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not _drops(p, training):
        return F.dropout(input, p, training, inplace)
    dropped = _dropout(keyed, input, p, training)
    return input.copy_(dropped) if inplace else dropped


def _recurrent(function: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent function of torch with dropout of its own between layers."""

    def compute(keyed: KeyedBits, *arguments: Any, **named: Any) -> Any:
        if named or torch.compiler.is_compiling():
            return NotImplemented
        return one_layer_at_a_time(function, lambda input, p: _dropout(keyed, input, p, True), *arguments)

    return compute


def _feature_dropout(keyed: KeyedBits, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.feature_dropout(input, p, train)
    return _drop(input, _role(input, "activation"), keyed, input.shape[:2], p)


def _alpha_dropout(keyed: KeyedBits, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.alpha_dropout(input, p, train)
    return _drop_to_floor(input, keyed, input.shape, p)


def _feature_alpha_dropout(keyed: KeyedBits, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.feature_alpha_dropout(input, p, train)
    return _drop_to_floor(input, keyed, input.shape[:2], p)


def _drops(p: float, train: bool) -> bool:
    """Whether dropout with these arguments draws anything. If not, torch's own function is called, which checks
    `p` and computes the rest."""
    return train and 0 < p < 1


def _role(tensor: torch.Tensor, otherwise: Role) -> Role:
    return "shared" if isinstance(tensor, nn.Parameter) else otherwise


def _drop(
    input: torch.Tensor, role: Role, keyed: KeyedBits, shape: Sequence[int], p: float, *, at_front: bool = False
) -> torch.Tensor:
    """Dropout of `input` with probability `p`: one random decision for each element of `shape`, the leading
    dimensions of the input's shape. Elements behind those dimensions are dropped together. With `at_front` the
    samples lie along the first dimension."""
    keep = keyed.bits(shape, input.device, role, at_front=at_front) < threshold(1 - p)
    # A product with the mask as it is leaves one byte for each element to the backward pass.
    return (input * _spread(keep, input.ndim)).mul_(1 / (1 - p))


def _drop_to_floor(input: torch.Tensor, keyed: KeyedBits, shape: Sequence[int], p: float) -> torch.Tensor:
    """Alpha dropout of `input`: dropped elements get SELU's lowest value, then all are scaled and shifted so that
    mean and variance stay 0 and 1. One random decision for each element of `shape`, the leading dimensions of the
    input's."""
    keep = keyed.bits(shape, input.device, _role(input, "activation")) < threshold(1 - p)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_FLOOR**2))
    shift = -scale * p * _SELU_FLOOR
    kept = torch.where(_spread(keep, input.ndim), input, _SELU_FLOOR)
    return kept.mul(scale).add_(shift)


def _spread(keep: torch.Tensor, ndim: int) -> torch.Tensor:
    return keep if keep.ndim == ndim else keep.view(*keep.shape, *(1 for _ in range(ndim - keep.ndim)))


def _attention(
    keyed: KeyedBits,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention with dropout, computed without fused kernels, since these draw numbers of their
    own.

    Takes memory for all weights, of shape (..., heads, targets, sources). Without dropout torch's own function
    computes it. Returns `NotImplemented` for nested tensors.
    """
    if not _drops(dropout_p, True):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if query.is_nested:
        return NotImplemented
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    weights = _attention_weights(query, key, attn_mask, is_causal, scale).to(value.dtype)
    return dropout_at_front(keyed, weights, dropout_p) @ value


def dropout_at_front(keyed: KeyedBits, input: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout with probability `p` of a tensor with the samples, or several rows for each, along the first
    dimension. No other dimension is taken for the batch, as a length that equals it by chance might be."""
    if not _drops(p, True):
        return torch.dropout(input, p, True)
    return _drop(input, "activation", keyed, input.shape, p, at_front=True)


def _attention_weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """The softmax of attention's scores, shape (..., targets, sources); zeros for a target that may attend to
    nothing."""
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype == torch.bool:
        blocked = ~mask
    else:
        blocked = mask == -math.inf
        scores = scores + mask
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(blocked, lowest).softmax(-1).masked_fill(blocked, 0.0)


def _rand(keyed: KeyedBits, *sizes: Any, **options: Any) -> Any:
    return _fresh(uniform, keyed, torch.empty, sizes, options, "sizes")


def _randn(keyed: KeyedBits, *sizes: Any, **options: Any) -> Any:
    return _fresh(normal, keyed, torch.empty, sizes, options, "sizes")


def _rand_like(keyed: KeyedBits, input: torch.Tensor, **options: Any) -> Any:
    return _fresh(uniform, keyed, torch.empty_like, (input,), options, _role(input, "like"))


def _randn_like(keyed: KeyedBits, input: torch.Tensor, **options: Any) -> Any:
    return _fresh(normal, keyed, torch.empty_like, (input,), options, _role(input, "like"))


def _fresh(
    distribution: Callable[[torch.Tensor, torch.dtype], torch.Tensor],
    keyed: KeyedBits,
    create: Callable[..., torch.Tensor],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    role: Role,
) -> Any:
    if options.get("out") is not None:
        return NotImplemented
    requires_grad = options.pop("requires_grad", False)
    values = create(*arguments, **options)
    if not values.is_floating_point():
        return NotImplemented
    values.copy_(distribution(keyed.bits(values.shape, values.device, role), values.dtype))
    return values.requires_grad_() if requires_grad else values


def _randint(keyed: KeyedBits, *arguments: Any, **options: Any) -> Any:
    bounds = [argument for argument in arguments if isinstance(argument, int)]
    size = options.pop("size", None)
    if size is None:
        size = arguments[-1]
    low, high = _bounds(bounds, options)
    if options.get("out") is not None or high - low > _LARGEST_RANGE:
        return NotImplemented
    values = torch.empty(size, **{"dtype": torch.int64, **options})
    return _fill_integers(values, keyed, "sizes", low, high)


def _randint_like(keyed: KeyedBits, input: torch.Tensor, *bounds: Any, **options: Any) -> Any:
    low, high = _bounds(bounds, options)
    if high - low > _LARGEST_RANGE:
        return NotImplemented
    return _fill_integers(torch.empty_like(input, **options), keyed, _role(input, "like"), low, high)


def _bounds(positional: Sequence[int], options: dict[str, Any]) -> tuple[int, int]:
    low = options.pop("low", 0)
    high = options.pop("high", None)
    if high is None:
        return (low, positional[0]) if len(positional) == 1 else (positional[0], positional[1])
    return (positional[0] if positional else low), high


def _fill_integers(values: torch.Tensor, keyed: KeyedBits, role: Role, low: int, high: int) -> torch.Tensor:
    bits = keyed.bits(values.shape, values.device, role).to(torch.int64)
    return values.copy_((((bits + 2**31) * (high - low)) >> 32) + low)


def _normal(keyed: KeyedBits, mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Any:
    if size is not None:
        values = _randn(keyed, size, **options)
        return values if values is NotImplemented else values.mul_(std).add_(mean)
    if options.get("out") is not None:
        return NotImplemented
    with torch.no_grad():
        centre = torch.zeros_like(mean + std) + mean
        return normal(keyed.bits(centre.shape, centre.device, "like"), centre.dtype).mul_(std).add_(centre)


def _bernoulli(keyed: KeyedBits, input: torch.Tensor, p: float | None = None, **options: Any) -> Any:
    if options.get("out") is not None:
        return NotImplemented
    with torch.no_grad():
        values = torch.empty_like(input)
        return _fill_bernoulli(values, keyed, _role(input, "like"), input if p is None else p)


def _bernoulli_in_place(keyed: KeyedBits, input: torch.Tensor, p: Any = 0.5) -> torch.Tensor:
    return _fill_bernoulli(input, keyed, _role(input, "like"), p)


def _fill_bernoulli(values: torch.Tensor, keyed: KeyedBits, role: Role, p: Any) -> torch.Tensor:
    bits = keyed.bits(values.shape, values.device, role)
    if isinstance(p, torch.Tensor):
        return values.copy_(uniform(bits, torch.float64 if p.dtype == torch.float64 else torch.float32) < p)
    return values.copy_(bits < threshold(p))


def _uniform_in_place(keyed: KeyedBits, input: torch.Tensor, *bounds: float, **named: float) -> Any:
    low, high = (*bounds, *(named.get(name, value) for name, value in (("from", 0.0), ("to", 1.0))[len(bounds) :]))
    return _fill(input, keyed, lambda bits, dtype: uniform(bits, dtype).mul_(high - low).add_(low))


def _normal_in_place(keyed: KeyedBits, input: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> Any:
    return _fill(input, keyed, lambda bits, dtype: normal(bits, dtype).mul_(std).add_(mean))


def _exponential_in_place(keyed: KeyedBits, input: torch.Tensor, lambd: float = 1.0) -> Any:
    return _fill(input, keyed, lambda bits, dtype: uniform(bits, dtype).log_().div_(-lambd))


def _fill(
    input: torch.Tensor, keyed: KeyedBits, distribution: Callable[[torch.Tensor, torch.dtype], torch.Tensor]
) -> Any:
    if not input.is_floating_point():
        return NotImplemented
    return input.copy_(distribution(keyed.bits(input.shape, input.device, _role(input, "like")), input.dtype))


def _rrelu(
    keyed: KeyedBits, input: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> torch.Tensor:
    if not training:
        return torch.rrelu(input, lower, upper, training)
    bits = keyed.bits(input.shape, input.device, "activation")
    slopes = uniform(bits, input.dtype).mul_(upper - lower).add_(lower)
    return torch.where(input < 0, input * slopes, input)


def _in_place(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The in-place form of `draw`: it writes the result into the input."""

    def put(keyed: KeyedBits, input: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
        values = draw(keyed, input, *options, **named)
        return values if values is input else input.copy_(values)

    return put


DRAWS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.dropout: _functional_dropout,
    torch.dropout: _dropout,
    torch.dropout_: _in_place(_dropout),
    torch.feature_dropout: _feature_dropout,
    torch.feature_dropout_: _in_place(_feature_dropout),
    torch.alpha_dropout: _alpha_dropout,
    torch.alpha_dropout_: _in_place(_alpha_dropout),
    torch.feature_alpha_dropout: _feature_alpha_dropout,
    torch.feature_alpha_dropout_: _in_place(_feature_alpha_dropout),
    torch.rrelu: _rrelu,
    torch.rrelu_: _in_place(_rrelu),
    torch.rand: _rand,
    torch.randn: _randn,
    torch.randint: _randint,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.randint_like: _randint_like,
    torch.normal: _normal,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.Tensor.bernoulli_: _bernoulli_in_place,
    torch.Tensor.uniform_: _uniform_in_place,
    torch.Tensor.normal_: _normal_in_place,
    torch.Tensor.exponential_: _exponential_in_place,
    F.scaled_dot_product_attention: _attention,
    **{function: _recurrent(function) for function in RECURRENT},
}
"""Function of torch that draws random numbers -> its replacement."""
