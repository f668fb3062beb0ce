"""Alternative ways to compute a layer, each of which runs and gives the same results as the layer as built.

An algorithm replaces a module's `forward` while it is tried. `Unsuitable` says in its message why an algorithm
cannot be used for a layer, on a device or with this build of torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from oakum_worker.recurrent.layers import GRU, LSTM
from oakum_worker.torch_internals import tree_leaves, tree_map

Forward = Callable[..., Any]

AS_BUILT, COMPILED = "as built", "torch.compile"
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Unsuitable(Exception):  # noqa: N818 - an answer, not a fault
    """An algorithm is of no use for a layer here; the message says why."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A named way to compute a layer."""

    name: str
    of: Callable[[nn.Module], Forward]
    """The forward pass of a module by this algorithm; raises `Unsuitable`."""


@contextmanager
def forward_replaced(module: nn.Module, forward: Forward) -> Iterator[None]:
    """Context in which the module's `forward` is replaced by this function."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def algorithms(module: nn.Module, *, attends: bool, compiles: bool) -> list[Algorithm]:
    """All algorithms that are worth a trial for the module, the one that it is built with first.

    `attends`: whether it computes scaled dot-product attention. `compiles`: whether torch.compile is tried, which
    takes long.
    """
    candidates = [Algorithm(AS_BUILT, lambda module: module.forward)]
    if isinstance(module, _CONVOLUTIONS):
        candidates += [
            Algorithm("channels-last", _channels_last),
            Algorithm("im2col", _im2col),
            Algorithm("cuDNN benchmark", _cudnn_benchmark),
        ]
    if isinstance(module, nn.RNNBase):
        candidates.append(Algorithm("fused loops", _fused_loops))
    if isinstance(module, (*_CONVOLUTIONS, nn.Linear, nn.RNNBase)):
        candidates.append(Algorithm("without oneDNN", _without_onednn))
    if attends:
        candidates += [
            Algorithm(f"SDPA {name}", partial(_attention, backend)) for name, backend in _BACKENDS.items()
        ]
    if not isinstance(module, (*_CONVOLUTIONS, nn.Linear)):
        candidates.append(Algorithm("recompute", _recompute))
    if compiles:
        candidates.append(Algorithm(COMPILED, _compiled))
    return candidates


_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def _on(module: nn.Module) -> torch.device:
    return next(module.parameters(), torch.empty(0)).device


def _channels_last(module: nn.Module) -> Forward:
    if not isinstance(module, nn.Conv2d):
        raise Unsuitable("is for convolutions over images")
    forward = module.forward

    def compute(x: torch.Tensor) -> torch.Tensor:
        return forward(x.contiguous(memory_format=torch.channels_last))

    return compute


def _im2col(module: nn.Module) -> Forward:
    """Unfold the image into columns, one for each place of the kernel, and multiply once."""
    if not isinstance(module, nn.Conv2d):
        raise Unsuitable("is for convolutions over images")
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise Unsuitable("is for convolutions of one group that are padded with a given number of zeros")
    kernel, dilation, padding, stride = module.kernel_size, module.dilation, module.padding, module.stride

    def compute(x: torch.Tensor) -> torch.Tensor:
        columns = functional.unfold(x, kernel, dilation, padding, stride)  # (n, c k k, places)
        product = module.weight.flatten(1) @ columns  # (n, o, places)
        if module.bias is not None:
            product = product + module.bias[:, None]
        height, width = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip(x.shape[-2:], padding, dilation, kernel, stride, strict=True)
        )
        return product.unflatten(-1, (height, width))

    return compute


def _without_onednn(module: nn.Module) -> Forward:
    if _on(module).type != "cpu":
        raise Unsuitable("oneDNN computes on CPUs only")
    if not torch.backends.mkldnn.is_available():
        raise Unsuitable("this torch has no oneDNN")
    return _within(module, lambda: torch.backends.mkldnn.flags(enabled=False))


def _cudnn_benchmark(module: nn.Module) -> Forward:
    if _on(module).type != "cuda":
        raise Unsuitable("cuDNN computes on NVIDIA GPUs only")
    return _within(module, lambda: torch.backends.cudnn.flags(enabled=True, benchmark=True))


def _within(module: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> Forward:
    """A forward pass that computes in the context, and has its backward pass do so, too: torch chooses the
    backward pass's kernel only when that runs."""
    forward = module.forward

    def compute(x: torch.Tensor, *others: Any) -> Any:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        outputs: list[Any] = []

        def run(own: torch.Tensor) -> list[torch.Tensor]:
            outputs.append(forward(own, *others))
            return [leaf for leaf in tree_leaves(outputs[0]) if isinstance(leaf, torch.Tensor)]

        results = iter(_InContext.apply(context, run, x, *trained))
        return tree_map(lambda leaf: next(results) if isinstance(leaf, torch.Tensor) else leaf, outputs[0])

    return compute


class _InContext(torch.autograd.Function):
    """Computes the tensors of `run(x)` and their gradients within a context."""

    @staticmethod
    def forward(ctx: Any, context: Any, run: Forward, x: torch.Tensor, *trained: torch.Tensor) -> Any:
        with context(), torch.enable_grad():
            own = x.detach().requires_grad_(x.requires_grad)
            ctx.graph = (own, run(own))
        ctx.context, ctx.trained = context, trained
        return tuple(result.detach() for result in ctx.graph[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        own, results = ctx.graph
        wanted = [*([own] if own.requires_grad else []), *ctx.trained]
        with ctx.context():
            computed = list(torch.autograd.grad(results, wanted, gradients, allow_unused=True))
        ctx.graph = None
        of_x = computed.pop(0) if own.requires_grad else None
        return None, None, of_x, *computed


def _fused_loops(module: nn.Module) -> Forward:
    """The forward pass of Oakum's own recurrent layer, with the module's parameters."""
    kinds: dict[type[nn.Module], type[LSTM] | type[GRU]] = {nn.LSTM: LSTM, nn.GRU: GRU}
    kind = kinds.get(type(module))
    if kind is None or not isinstance(module, nn.RNNBase) or module.proj_size:
        raise Unsuitable("compute nn.LSTM and nn.GRU, without projections")
    fused = kind(
        module.input_size,
        module.hidden_size,
        module.num_layers,
        bias=module.bias,
        batch_first=module.batch_first,
        dropout=module.dropout,
        bidirectional=module.bidirectional,
        device="meta",
    )
    for name, parameter in module.named_parameters():
        setattr(fused, name, parameter)
    if not (runs := str(fused.runs)).startswith("fused"):
        raise Unsuitable(runs)
    forward: Forward = fused.forward
    return forward


def _attention(backend: SDPBackend, module: nn.Module) -> Forward:
    forward = module.forward

    def compute(*arguments: Any, **keywords: Any) -> Any:
        with sdpa_kernel(backend):
            return forward(*arguments, **keywords)

    return compute


def _recompute(module: nn.Module) -> Forward:
    forward = module.forward

    def compute(*arguments: Any, **keywords: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    return compute


def _compiled(module: nn.Module) -> Forward:
    if isinstance(module, nn.RNNBase):
        raise Unsuitable("leaves recurrent layers as they are")
    if _on(module).type == "cpu" and not any(shutil.which(name) for name in _compilers()):
        raise Unsuitable(f"needs a C++ compiler, and none of {', '.join(_compilers())} is here: install g++")
    torch.compiler.reset()  # of some sizes of one function the compiler gives up, and computes it as built
    compiled: Forward = torch.compile(module.forward, dynamic=False)
    return compiled


def _compilers() -> list[str]:
    """The commands that torch's compiler of C++ looks for."""
    return [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
