"""Defines a state that is split over ranks: one rank's share of it, and what a strategy has to implement.

`oakum_worker.state.tree` takes a state apart into a JSON document, which equals that of a replicated trainer, and
tensors by path. The strategy decides which of these tensors are split and which rank holds which of their rows;
all other tensors are whole on every rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from oakum_worker.errors import CheckpointError
from oakum_worker.parallel.holdings import Part, Place, Rows, SplitTensor
from oakum_worker.protocol import Station
from oakum_worker.state.tree import Document, dismantle

Tell = Callable[[Any], list[Any]]
"""Collective function: takes this rank's JSON document and returns those of all ranks, by rank."""


@dataclass(frozen=True)
class RankSnapshot:
    """One rank's share of the state at a step boundary, in CPU memory."""

    step: int
    generation: int
    """Number of the generation whose holdings define the parts."""
    document: Document
    whole: Rows
    """Path -> tensor, of the tensors that are not split."""
    parts: dict[Part, Rows] = field(default_factory=dict)
    """Rows of this rank's own part, and of parts that leaving ranks have handed to it."""


@dataclass(frozen=True)
class LocalState:
    """One rank's share of the present state. The tensors are the live ones, not copies."""

    document: Document
    whole: Rows
    rows: Rows
    tensors: list[SplitTensor]
    """The document's split tensors, to which `rows` belong."""


class SplitState(Protocol):
    """Interface of a trainer's state that is split over ranks: the task's model and optimizer, split anew for each
    generation; until the first one they are the user's own.

    A `SplitStateKeeper` carries the state from one generation to the next.
    """

    is_partial: bool
    """Whether a rank's own document of the state is incomplete, so that `complete` has to communicate."""
    place: Place
    """Which parts this rank holds, and which the others hold."""

    def lay_out(
        self,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        tell: Tell,
        stations: Sequence[Station] = (),
    ) -> None:
        """Give the task this rank's parameters for a new generation, with arbitrary values. Collective among the
        generation's ranks; `tell` sends each rank's JSON document to all. `stations` says where these ranks stand;
        empty for a rank alone."""

    def free(self) -> None:
        """Free the memory of the previous generation's parameters, whose values are lost."""

    def capture(self, rest: Mapping[str, Any]) -> LocalState:
        """This rank's share of the present state: model, optimizer and the entries of `rest`."""

    def complete(self, state: LocalState, tell: Tell) -> LocalState:
        """The captured state with a document that describes the whole state, not only this rank's share.
        Collective."""

    def joined(self, document: Document, entries: list[Any]) -> Document:
        """The document with the optimizer states of all ranks (`entries`, by rank) merged into it; an entry is
        None if a rank has none."""

    def split_tensors(self, document: Document) -> list[SplitTensor]:
        """The tensors of a state that are split over the ranks, in the same order on every rank. Raises
        `CheckpointError` where the state belongs to another model."""

    def allocate(self, document: Document) -> dict[str, torch.Tensor]:
        """CPU memory for this rank's rows of a state; the model's own memory where it is on the CPU."""

    def fill(self, document: Document, whole: Rows, rows: Rows) -> None:
        """Load a state into the model and the optimizer: `whole` tensors by path, and this rank's `rows`, which
        must be in memory from `allocate`. Raises `CheckpointError` where it belongs to another model or
        optimizer."""


def model_document(live: Mapping[str, torch.Tensor]) -> Document:
    """The JSON document of a model's state, made from its tensors by name. A tied tensor has an entry under each
    of its names, and all its entries give the path of the first name."""
    first = {id(tensor): key for key, tensor in reversed(list(live.items()))}
    document, _ = dismantle({"model": dict(live)})
    return {key: document["model"][first[id(tensor)]] for key, tensor in live.items()}


@contextlib.contextmanager
def fitting() -> Iterator[None]:
    """Context in which an error that shows that a state belongs to another task, such as a missing name or another
    shape, is raised as `CheckpointError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the state does not fit the task ({error}): use the model and optimizer it was made with, or begin a "
            "new trainer"
        ) from error
