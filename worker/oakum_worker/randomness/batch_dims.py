"""Along which dimension the samples lie in what a forward pass draws numbers for, remembered for each drawing
call.

A tensor of shape (T, B, ...) with the sequence first looks like one of shape (B, T, ...) wherever a micro-batch
has as many samples as a sequence has steps. Two micro-batches of other sizes tell them apart: only the dimension
of the samples changes its size with them. A rehearsal computes such micro-batches, and what it has seen belongs to
the trainer's state, since a rank that joins later sees only one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

Role = Literal["activation", "like", "sizes", "shared"]
"""What kind of thing has the shape that numbers are drawn for. It decides how the batch is looked for in the
shape.

- `activation`: something computed from the samples. If no batch is found in it, a warning is given.
- `like`: any tensor. If no batch is found in it, all samples share the numbers.
- `sizes`: sizes alone; a batch is found only in a size equal to the number of samples. If there is none, all
  samples share the numbers.
- `shared`: something that certainly has no batch, such as a parameter. All samples share the numbers.
"""

Seen = dict[str, list[int]]
"""Drawing call of a pass -> the dimension that its samples were taken to lie along, `NO_SAMPLES` for none; then
all that its sizes allow."""

NO_SAMPLES = -1
_TAKEN_DIFFERENTLY = -2
_BEFORE_LAYERS = -1


class BatchDims:
    """Remembers the dimension of the samples for each drawing call of a forward pass.

    A call is known by its place in the order of a pass's calls, or of those of a chain's layer, for tensors of as
    many dimensions and of the same role. For calls that were not rehearsed the sizes decide (`batch_dim`).
    """

    def __init__(self) -> None:
        self._dims: dict[str, int] = {}
        self._observed: Seen | None = None
        self._key: int | None = None
        self._calls: dict[tuple[int, int], str] = {}
        """Numbers of a drawing call, which are the same whenever it is computed again -> its place in its pass."""
        self._layer, self._number_of_calls = _BEFORE_LAYERS, Counter[str]()

    def begin(self, key: int) -> None:
        """Begin a micro-batch of the step with this key."""
        if key != self._key:
            self._key = key
            self._calls.clear()
            self._number_of_calls.clear()
        self._layer = _BEFORE_LAYERS

    def begin_layer(self, number: int) -> None:
        """Begin a layer of a chain."""
        self._layer = number

    def dim_of(self, numbers: tuple[int, int], shape: Sequence[int], count: int, role: Role) -> int | None:
        """The dimension of `shape`, 0 or 1, along which the `count` samples lie; None where neither is. `numbers`
        are the two that the generator gave for this drawing call, by which it is known again."""
        guess = batch_dim(shape, count, role)
        if not (self._dims or self._observed is not None) or role == "shared" or not shape:
            return guess
        call, possible = self._call(numbers, f"{role}-{len(shape)}"), _possible(shape, count, role)
        learned = self._dims.get(call)
        dim = guess
        if learned in possible:
            dim = learned
        elif learned == NO_SAMPLES and role != "activation":
            dim = None
        if self._observed is not None and (possible or role != "activation"):
            self._note(self._observed, call, NO_SAMPLES if dim is None else dim, possible)
        return dim

    @contextmanager
    def observed(self) -> Iterator[Seen]:
        """Context that notes the drawing calls. Yields what was seen."""
        calls: Seen = {}
        self._observed = calls
        try:
            yield calls
        finally:
            self._observed = None

    def learn(self, passes: Sequence[Seen]) -> bool:
        """Remember what these passes of different sizes tell together. Returns whether one of them took its
        samples to lie elsewhere than they do."""
        self._dims = learned = {}
        for call in passes[0] if passes else ():
            notes = [one[call] for one in passes if call in one]
            dims = [set(possible) for _, *possible in notes]
            common = set.intersection(*dims)
            if not all(dims):
                learned[call] = NO_SAMPLES
            elif len(common) == 1:
                learned[call] = common.pop()
        return any(one[call][0] != dim for call, dim in learned.items() for one in passes if call in one)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered."""
        return {"dims": dict(self._dims)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember what `state` has."""
        self._dims = dict(state["dims"])

    def _note(self, calls: Seen, call: str, taken: int, possible: list[int]) -> None:
        if (before := calls.get(call)) is not None:  # a pass in several parts, or one that is computed again
            taken = taken if taken == before[0] else _TAKEN_DIFFERENTLY
            possible = [dim for dim in possible if dim in before[1:]]
        calls[call] = [taken, *possible]

    def _call(self, numbers: tuple[int, int], kind: str) -> str:
        call = self._calls.get(numbers)
        if call is None:
            kind = f"{self._layer}-{kind}"
            call = self._calls[numbers] = f"{kind}-{self._number_of_calls[kind]}"
            self._number_of_calls[kind] += 1
        return call


def batch_dim(shape: Sequence[int], count: int, role: Role) -> int | None:
    """The dimension of a shape, 0 or 1, along which `count` samples lie by its sizes alone; None where neither
    does, and for the role `shared`.

    These are tried in order: the first dimension, if it is `count`; the second of three or more dimensions, if it
    is `count` (inputs with the sequence first); the first, if it is a multiple of `count` (a sample's tokens,
    views or heads one after the other); the second of two dimensions, if it is `count`. For the role `sizes` only
    the first two are tried.
    """
    if role == "shared" or not shape:
        return None
    if shape[0] == count:
        return 0
    if len(shape) > 2 and shape[1] == count:
        return 1
    if role == "sizes":
        return None
    if shape[0] > 0 and shape[0] % count == 0:
        return 0
    return 1 if len(shape) == 2 and shape[1] == count else None


def _possible(shape: Sequence[int], count: int, role: Role) -> list[int]:
    """The dimensions of a shape along which `count` samples may lie by its sizes."""
    if role == "sizes":
        fits = (shape[0] == count, len(shape) > 2 and shape[1] == count)
    else:
        fits = (shape[0] > 0 and shape[0] % count == 0, len(shape) > 1 and shape[1] == count)
    return [dim for dim, does in enumerate(fits) if does]
