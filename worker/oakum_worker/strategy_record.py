"""What is known of a strategy without building it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to spread a trainer's work and state over its ranks."""

    name: str
    options: tuple[str, ...] = ()
    """The options that ask for it, together, in the form of `given_options`."""
    module: str = ""
    """Full name of the module whose `assemble` builds a trainer's engine, state and keeper; empty: the one of the
    strategy's name in `oakum_worker.strategies`."""
    excludes: tuple[str, ...] = ()
    """Options that do not go with the first of its own."""
    complaint: str = "{other} does not go with {option}: leave out one of them"
    """What a user is told who gives one of them."""
    takes_scripts: bool = False
    """Whether it trains scripts, whose loop computes whole shares with the whole model."""
    splits_state: bool = False
    """Whether each rank has only a part of the state, so that more ranks mean less memory for each."""
    splits_batches: bool = False
    """Whether a rank computes its share of a batch in several parts whatever the spec says of micro-batches."""
    passes_are_collective: bool = False
    """Whether ranks exchange data within a forward pass, so that no rank can repeat one on its own."""
    evaluates_alone: bool = True
    """Whether one process without the trainer's other ranks can evaluate the model."""
    copies_model: bool = False
    """Whether another object is trained than the model that the entrypoint has built."""
    takes_gradients: bool = True
    """Whether parameters are trained by gradients of the loss."""
    saves_memory: str = ""
    """What a user can do, with this strategy in particular, for a rank to need less memory."""
