"""What holds within backward passes that are nested so deeply that autograd goes on in threads of its own.

    python -m deep_backward_child

checks it, in a process of its own: from then on no copy of the process computes gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from oakum_worker.randomness.sample_randomness import SampleRandomness
from oakum_worker.rehearsal.process_copy import Child, CopyError, fork

_DEEP = 70


class _Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, innermost: Callable[[], object]) -> torch.Tensor:
        ctx.depth, ctx.innermost = depth, innermost
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.depth == 0:
            ctx.innermost()
        else:
            with torch.enable_grad():
                inner = _nested(ctx.depth - 1, ctx.innermost)
            inner.backward()
        return gradients[0], None, None


def _nested(depth: int, innermost: Callable[[], object]) -> Any:
    return _Nested.apply(torch.ones((), requires_grad=True), depth, innermost)  # type: ignore[no-untyped-call]


def drawn_in_backward(chunk: range) -> tuple[int, torch.Tensor]:
    """The thread in which the innermost pass ran, and what it drew for these samples."""
    found: list[tuple[int, torch.Tensor]] = []
    ones = torch.ones(len(chunk), 100)
    with SampleRandomness(torch.device("cpu")).samples(5, chunk.start, len(chunk)):
        _nested(_DEEP, lambda: found.append((threading.get_ident(), F.dropout(ones)))).backward()
    return found[0]


def has_copies_that_compute() -> bool:
    """Whether a copy of this process computes gradients."""
    try:
        made = fork(60.0)
    except CopyError:
        return False
    if isinstance(made, Child):
        made.tell({"computes": True})
    return made == {"computes": True}


if __name__ == "__main__":
    assert has_copies_that_compute()
    thread, together = drawn_in_backward(range(6))
    assert thread != threading.get_ident()
    assert torch.equal(drawn_in_backward(range(2, 6))[1], together[2:])
    assert not has_copies_that_compute()
