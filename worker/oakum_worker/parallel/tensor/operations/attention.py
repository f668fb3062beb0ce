"""Attention: local, since each rank has whole samples and whole heads. Also products of matrices in a batch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from oakum_worker.parallel.tensor.operations.dropout import dropped
from oakum_worker.parallel.tensor.operations.linear import layout_of, linear, weight_splits
from oakum_worker.parallel.tensor.operations.shapes import reshaped
from oakum_worker.parallel.tensor.placements import Split
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, answer_uncut, arranged, block, refuse


def attention(
    work: Work,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Spread:
    """Rule for `F.scaled_dot_product_attention` on spread tensors (..., length, width of a head): returns the
    result as a spread tensor. Nothing is communicated, since each rank has whole heads. Raises `TaskError` for
    arguments that cannot be computed like that."""
    q, k, v = _whole_heads(F.scaled_dot_product_attention, query, key, value)
    mask = None
    if attn_mask is not None:
        scores = (*q.shape[:-1], k.shape[-2])
        mask = block(work, attn_mask, scores, (*q.splits[:-2], None, None), "whole")
    shape = (*q.shape[:-1], v.shape[-1])
    if not 0 < dropout_p < 1:
        local = F.scaled_dot_product_attention(
            q.local, k.local, v.local, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return Spread(local, shape, q.splits, work)
    if enable_gqa:
        refuse(F.scaled_dot_product_attention, "with enable_gqa and dropout")
    weights = _weights(q.local, k.local, mask, is_causal, scale)
    spread = Spread(weights, (*q.shape[:-1], k.shape[-2]), q.splits, work)
    local = dropped(work, spread, dropout_p, at_front=True).local.to(v.local.dtype) @ v.local
    return Spread(local, shape, q.splits, work)


def _whole_heads(func: Any, query: torch.Tensor, *others: torch.Tensor) -> list[Spread]:
    """The tensors, with `others` cut as `query` is in the dimensions before the last two. Raises `TaskError` where
    `query` is cut in one of the last two, or a tensor does not belong to the batch."""
    if not isinstance(query, Spread):
        refuse(func, "of tensors that do not belong to the batch")
    assert isinstance(query, Spread)
    if any(split is not None for split in query.splits[-2:]):
        refuse(func, "within heads: divide the features into heads, and put the heads before the length")
    aligned = [query]
    for other in others:
        if not isinstance(other, Spread):
            refuse(func, "of tensors that do not belong to the batch")
        assert isinstance(other, Spread)
        splits = tuple(
            None if have is None else Split(have.axes, length if have.units != own else have.units)
            for have, length, own in zip(query.splits, other.shape, query.shape, strict=True)
        )
        aligned.append(arranged(other, splits, query.axes))
    return aligned


def _weights(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) * (q.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype != torch.bool:
        mask, scores = mask != -math.inf, scores + mask
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def multi_head_attention(
    work: Work,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor | None,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    training: bool = True,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: torch.Tensor | None = None,
    k_proj_weight: torch.Tensor | None = None,
    v_proj_weight: torch.Tensor | None = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, None]:
    """Rule for `F.multi_head_attention_forward` on spread tensors (length, samples, features): returns (output,
    None). Attention weights are never returned, since no rank has all heads. Raises `TaskError` for arguments
    that cannot be computed on a grid, such as different query, key and value."""
    func = F.multi_head_attention_forward
    others = (bias_k, bias_v, static_k, static_v)
    if add_zero_attn or use_separate_proj_weight or in_proj_weight is None or any(v is not None for v in others):
        refuse(func, "with kdim, vdim, add_bias_kv or add_zero_attn")
    if query is not key or key is not value or not isinstance(query, Spread) or query.ndim != 3:
        refuse(func, "but of one batch with itself: give the same tensor as query, key and value")
    assert isinstance(query, Spread)
    assert in_proj_weight is not None
    _place_fused(work, query, in_proj_weight, in_proj_bias)
    projected = linear(work, query, in_proj_weight, in_proj_bias)
    q, k, v = (_heads(part, num_heads) for part in projected.chunk(3, -1))
    mask = _mask(attn_mask, key_padding_mask, q, num_heads)
    output = attention(work, q, k, v, mask, dropout_p if training else 0.0, is_causal and mask is None)
    together = reshaped(output.permute(2, 0, 1, 3), query.shape)  # type: ignore[arg-type]
    return linear(work, together, out_proj_weight, out_proj_bias), None


def _place_fused(work: Work, query: Spread, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Decide how the parameters of a fused query, key and value projection are cut: each of the three sections by
    itself. Does nothing where they are placed already."""
    parameters = [value for value in (weight, bias) if isinstance(value, torch.nn.Parameter)]
    if all(work.placing.placement_of(parameter) is None for parameter in parameters):
        of_n, of_k = weight_splits(work, layout_of(work, query), weight.shape)
        for parameter in parameters:
            splits = (of_n, of_k)[: parameter.ndim]
            work.placing.place(parameter, splits, "fused projection")
        work.placing.fold(parameters, 3)


def _heads(x: Any, num_heads: int) -> Spread:
    """The features divided into heads: (length, samples, features) becomes (samples, heads, length, width of a
    head)."""
    length, samples, features = x.shape
    return reshaped(x, (length, samples, num_heads, features // num_heads)).permute(1, 2, 0, 3)  # type: ignore


def _mask(
    mask: torch.Tensor | None, padding: torch.Tensor | None, q: Spread, num_heads: int
) -> torch.Tensor | None:
    """Attention mask and padding mask combined into one that broadcasts to (samples, heads, length, length) and is
    added to the scores; None without any mask."""
    if mask is not None and mask.ndim == 3:
        mask = mask.view(q.shape[0], num_heads, *mask.shape[1:])
    if padding is not None:
        padding = padding.view(q.shape[0], 1, 1, -1)
        mask = padding if mask is None else _added(mask, q) + _added(padding, q)
    return None if mask is None else _added(mask, q)


def _added(mask: torch.Tensor, q: Spread) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros((), dtype=q.dtype, device=q.device)
    return torch.where(mask, zeros - math.inf, zeros)


def matmul(func: Any, work: Work, first: torch.Tensor, second: torch.Tensor) -> Any:
    """Rule for products of matrices in a batch, such as attention's scores: returns the product of spread
    tensors whose last two dimensions are not cut. Raises `TaskError` for others."""
    if not any(isinstance(value, Spread) and value.axes for value in (first, second)):
        return answer_uncut(work, func, (first, second), {})
    if not isinstance(first, Spread) or not isinstance(second, Spread) or first.ndim != second.ndim:
        refuse(func, "of activations and a weight: use F.linear")
    assert isinstance(second, Spread)
    if any(split is not None for split in second.splits[-2:]):
        refuse(func, f"with a tensor of shape {tuple(second.shape)}, whose matrices are cut")
    x, y = _whole_heads(func, first, second)
    return Spread(func(x.local, y.local), (*x.shape[:-1], y.shape[-1]), x.splits, work)


def softmax(func: Any, work: Work, input: torch.Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
    """Rule for a function along one dimension, such as softmax: returns its result for a spread tensor. Raises
    `TaskError` where that dimension is cut."""
    if not isinstance(input, Spread) or not input.axes:
        return answer_uncut(work, func, (input, dim, *args), kwargs)
    if input.splits[dim] is not None:
        refuse(func, f"along a cut dimension of a tensor of shape {tuple(input.shape)}")
    return Spread(func(input.local, dim, *args, **kwargs), input.shape, input.splits, work)


RULES[F.scaled_dot_product_attention] = attention
RULES[F.multi_head_attention_forward] = multi_head_attention
for _func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm):
    RULES[_func] = partial(matmul, torch.matmul)
_ALONG: tuple[Any, ...] = (F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, torch.Tensor.softmax)
for _along in _ALONG:
    RULES[_along] = partial(softmax, _along)
