"""What cannot be profiled or advised on."""

from __future__ import annotations

from oakum_worker.errors import SpecError
from oakum_worker.memory_advice import memory_advice
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import strategy_of


def refuse_without_gradients(spec: TrainerSpec) -> None:
    """Raise `SpecError` where the spec's strategy takes no gradients: profiles and advice are measured in forward
    and backward passes."""
    strategy = strategy_of(spec)
    if not strategy.takes_gradients:
        raise SpecError(
            f"{spec.name} has {' and '.join(strategy.options)}, which trains without gradients, and forward and "
            "backward passes are what is measured: profiles and advice are for other trainers. "
            f"{memory_advice(spec)}"
        )
