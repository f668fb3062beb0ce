"""What stands in for torch's functions that draw random numbers: the same distribution, drawn sample by sample.

Each function takes the noise and then what the function of torch's takes that it stands in for. It is called with
the function mode off, so that the torch functions that it calls are torch's own. It returns `NotImplemented` for
arguments that it has nothing for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from oakum_worker.noise import Noise, Role, normal, threshold, uniform

# Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", 2017: minus lambda times alpha.
_SELU_FLOOR = -1.7580993408473766
_LARGEST_RANGE = 1 << 31


def _dropout(noise: Noise, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.dropout(input, p, train)
    return _drop(input, _role(input, "activation"), noise, input.shape, p)


def _functional_dropout(
    noise: Noise, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not _drops(p, training):
        return F.dropout(input, p, training, inplace)
    dropped = _dropout(noise, input, p, training)
    return input.copy_(dropped) if inplace else dropped


def _feature_dropout(noise: Noise, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.feature_dropout(input, p, train)
    return _drop(input, _role(input, "activation"), noise, input.shape[:2], p)


def _alpha_dropout(noise: Noise, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.alpha_dropout(input, p, train)
    return _drop_to_floor(input, noise, input.shape, p)


def _feature_alpha_dropout(noise: Noise, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _drops(p, train):
        return torch.feature_alpha_dropout(input, p, train)
    return _drop_to_floor(input, noise, input.shape[:2], p)


def _drops(p: float, train: bool) -> bool:
    """Whether there is anything to draw. Where not, torch's own function checks p and does what is left to do."""
    return train and 0 < p < 1


def _role(tensor: torch.Tensor, otherwise: Role) -> Role:
    return "shared" if isinstance(tensor, nn.Parameter) else otherwise


def _drop(input: torch.Tensor, role: Role, noise: Noise, shape: Sequence[int], p: float) -> torch.Tensor:
    """Dropout with one decision for each place of `shape`, the leading dimensions of the input's."""
    keep = noise.bits(shape, input.device, role) < threshold(1 - p)
    # A product with the mask as it is leaves one byte for each element to the backward pass.
    return (input * _spread(keep, input.ndim)).mul_(1 / (1 - p))


def _drop_to_floor(input: torch.Tensor, noise: Noise, shape: Sequence[int], p: float) -> torch.Tensor:
    """Alpha dropout: what is dropped gets SELU's floor, then mean and variance are put back to 0 and 1."""
    keep = noise.bits(shape, input.device, _role(input, "activation")) < threshold(1 - p)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_FLOOR**2))
    shift = -scale * p * _SELU_FLOOR
    kept = torch.where(_spread(keep, input.ndim), input, _SELU_FLOOR)
    return kept.mul(scale).add_(shift)


def _spread(keep: torch.Tensor, ndim: int) -> torch.Tensor:
    return keep if keep.ndim == ndim else keep.view(*keep.shape, *(1 for _ in range(ndim - keep.ndim)))


def _attention(
    noise: Noise,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention with dropout in its plain form: fused kernels draw numbers of their own.

    Takes memory for the weights, (..., heads, targets, sources).
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
    # With one dimension behind the first, neither heads nor lengths can be taken for the batch.
    rows = weights.flatten(1)
    return _drop(rows, "activation", noise, rows.shape, dropout_p).view_as(weights) @ value


def _attention_weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Attention's softmax, with zeros for a target that may attend to nothing."""
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


def _rand(noise: Noise, *sizes: Any, **options: Any) -> Any:
    return _fresh(uniform, noise, torch.empty, sizes, options, "sizes")


def _randn(noise: Noise, *sizes: Any, **options: Any) -> Any:
    return _fresh(normal, noise, torch.empty, sizes, options, "sizes")


def _rand_like(noise: Noise, input: torch.Tensor, **options: Any) -> Any:
    return _fresh(uniform, noise, torch.empty_like, (input,), options, _role(input, "like"))


def _randn_like(noise: Noise, input: torch.Tensor, **options: Any) -> Any:
    return _fresh(normal, noise, torch.empty_like, (input,), options, _role(input, "like"))


def _fresh(
    distribution: Callable[[torch.Tensor, torch.dtype], torch.Tensor],
    noise: Noise,
    create: Callable[..., torch.Tensor],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    role: Role,
) -> Any:
    if options.get("out") is not None:
        return NotImplemented
    requires_grad = options.pop("requires_grad", False)
    made = create(*arguments, **options)
    if not made.is_floating_point():
        return NotImplemented
    made.copy_(distribution(noise.bits(made.shape, made.device, role), made.dtype))
    return made.requires_grad_() if requires_grad else made


def _randint(noise: Noise, *arguments: Any, **options: Any) -> Any:
    bounds = [argument for argument in arguments if isinstance(argument, int)]
    size = options.pop("size", None)
    if size is None:
        size = arguments[-1]
    low, high = _bounds(bounds, options)
    if options.get("out") is not None or high - low > _LARGEST_RANGE:
        return NotImplemented
    made = torch.empty(size, **{"dtype": torch.int64, **options})
    return _fill_integers(made, noise, "sizes", low, high)


def _randint_like(noise: Noise, input: torch.Tensor, *bounds: Any, **options: Any) -> Any:
    low, high = _bounds(bounds, options)
    if high - low > _LARGEST_RANGE:
        return NotImplemented
    return _fill_integers(torch.empty_like(input, **options), noise, _role(input, "like"), low, high)


def _bounds(positional: Sequence[int], options: dict[str, Any]) -> tuple[int, int]:
    low = options.pop("low", 0)
    high = options.pop("high", None)
    if high is None:
        return (low, positional[0]) if len(positional) == 1 else (positional[0], positional[1])
    return (positional[0] if positional else low), high


def _fill_integers(made: torch.Tensor, noise: Noise, role: Role, low: int, high: int) -> torch.Tensor:
    bits = noise.bits(made.shape, made.device, role).to(torch.int64)
    return made.copy_((((bits + 2**31) * (high - low)) >> 32) + low)


def _normal(noise: Noise, mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Any:
    if size is not None:
        made = _randn(noise, size, **options)
        return made if made is NotImplemented else made.mul_(std).add_(mean)
    if options.get("out") is not None:
        return NotImplemented
    with torch.no_grad():
        centre = torch.zeros_like(mean + std) + mean
        return normal(noise.bits(centre.shape, centre.device, "like"), centre.dtype).mul_(std).add_(centre)


def _bernoulli(noise: Noise, input: torch.Tensor, p: float | None = None, **options: Any) -> Any:
    if options.get("out") is not None:
        return NotImplemented
    with torch.no_grad():
        made = torch.empty_like(input)
        return _fill_bernoulli(made, noise, _role(input, "like"), input if p is None else p)


def _bernoulli_in_place(noise: Noise, input: torch.Tensor, p: Any = 0.5) -> torch.Tensor:
    return _fill_bernoulli(input, noise, _role(input, "like"), p)


def _fill_bernoulli(made: torch.Tensor, noise: Noise, role: Role, p: Any) -> torch.Tensor:
    bits = noise.bits(made.shape, made.device, role)
    if isinstance(p, torch.Tensor):
        return made.copy_(uniform(bits, torch.float64 if p.dtype == torch.float64 else torch.float32) < p)
    return made.copy_(bits < threshold(p))


def _uniform_in_place(noise: Noise, input: torch.Tensor, *bounds: float, **named: float) -> Any:
    low, high = (*bounds, *(named.get(name, value) for name, value in (("from", 0.0), ("to", 1.0))[len(bounds) :]))
    return _fill(input, noise, lambda bits, dtype: uniform(bits, dtype).mul_(high - low).add_(low))


def _normal_in_place(noise: Noise, input: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> Any:
    return _fill(input, noise, lambda bits, dtype: normal(bits, dtype).mul_(std).add_(mean))


def _exponential_in_place(noise: Noise, input: torch.Tensor, lambd: float = 1.0) -> Any:
    return _fill(input, noise, lambda bits, dtype: uniform(bits, dtype).log_().div_(-lambd))


def _fill(
    input: torch.Tensor, noise: Noise, distribution: Callable[[torch.Tensor, torch.dtype], torch.Tensor]
) -> Any:
    if not input.is_floating_point():
        return NotImplemented
    return input.copy_(distribution(noise.bits(input.shape, input.device, _role(input, "like")), input.dtype))


def _rrelu(
    noise: Noise, input: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> torch.Tensor:
    if not training:
        return torch.rrelu(input, lower, upper, training)
    bits = noise.bits(input.shape, input.device, "activation")
    slopes = uniform(bits, input.dtype).mul_(upper - lower).add_(lower)
    return torch.where(input < 0, input * slopes, input)


def _in_place(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same, put into the tensor that it was made of."""

    def put(noise: Noise, input: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
        made = draw(noise, input, *options, **named)
        return made if made is input else input.copy_(made)

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
}
"""What stands in for each function of torch's that draws."""
