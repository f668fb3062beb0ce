"""Label smoothing for losses that were written without it (arXiv:1811.05233, after Szegedy et al., 2016)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from oakum_worker.function_mode import call

_PLACE_IN_ARGUMENTS = 7


def label_smoothing(amount: float) -> AbstractContextManager[Any]:
    """Context in which every `cross_entropy`, also that of `nn.CrossEntropyLoss`, smooths its labels by `amount`.

    A call that sets a `label_smoothing` of its own keeps it. Evaluations do not use this context.
    """
    return _Smoothing(amount) if amount else nullcontext()


class _Smoothing(TorchFunctionMode):
    def __init__(self, amount: float) -> None:
        super().__init__()
        self._amount = amount

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.cross_entropy and len(args) <= _PLACE_IN_ARGUMENTS and not kwargs.get("label_smoothing"):
            return func(*args, **{**kwargs, "label_smoothing": self._amount})
        return call(self, func, args, kwargs)
