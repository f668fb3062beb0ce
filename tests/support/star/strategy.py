"""The star as a strategy: its engine, and the keeper of a state that every rank has all of."""

from __future__ import annotations

from oakum_worker.strategies.assembly import Assembly, Ingredients
from oakum_worker.strategies.replicated import keep_whole_state
from oakum_worker.strategy_record import Strategy
from oakum_worker.strategy_table import register
from star.engine import StarEngine

STAR = Strategy("star", options=("name: star",), module=__name__)
register(STAR)


def assemble(ingredients: Ingredients) -> Assembly:
    """As of any strategy."""
    return Assembly(StarEngine(ingredients.task.model), keep_whole_state)
