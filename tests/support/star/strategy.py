"""The star as a strategy: its engine, and the keeper of a state that every rank has all of."""

from __future__ import annotations

from oakum_worker.strategies.registry import register
from oakum_worker.strategies.replicated import keep_whole_state
from oakum_worker.strategies.strategy import Assembly, Ingredients, Strategy
from star.engine import StarEngine


def _assemble(ingredients: Ingredients) -> Assembly:
    return Assembly(StarEngine(ingredients.task.model), keep_whole_state)


STAR = Strategy("star", serves=lambda spec: spec.name.startswith("star"), assemble=_assemble)
register(STAR)
