"""Blocks as a job prepares them for its maps, kept from round to round while they would be the same again.

A prepared block follows from the arrays of the state that the job names and from the block. It is kept under a
digest of both, so it does not matter which block of which round it was, and a data set may read a block otherwise
in another epoch. Maps get copies, with the same memory layout whether the block was kept or has just been
prepared: some products of matrices have other last bits in another layout.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from oakum_worker.errors import TaskError
from oakum_worker.map_reduce.job import ROUND, Arrays, MapReduceJob, PreparingJob

MOST_BYTES = 256 << 20
"""Size of the prepared blocks that a mapper keeps, at most."""


@dataclass(frozen=True)
class Preparation:
    """The preparation of blocks by given arrays of a state."""

    job: PreparingJob
    arrays: Arrays
    """Those that the job has named."""

    def key(self) -> bytes:
        """A digest of the arrays' names, types, shapes and bits."""
        hashed = hashlib.sha256()
        for name, array in self.arrays.items():
            hashed.update(repr((name, array.dtype.str, array.shape)).encode())
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.digest()

    def pickled(self, block: Any, name: bytes) -> bytes:
        """The prepared block, pickled; `name` is the block's `digest`. Raises `TaskError` where the job's
        `prepare` returns nothing that can be kept, loses examples or changes the block, and whatever it raises
        itself."""
        prepared = self.job.prepare({name: read_only(array) for name, array in self.arrays.items()}, block)
        if digest(block) != name:
            raise TaskError("prepare has changed the block that it was given: have it change a copy")
        if prepared is None:
            raise TaskError("prepare returned None: return the prepared block, which `map` gets")
        _compare_rows(block, prepared)
        try:
            return pickle.dumps(prepared, protocol=5)
        except Exception as error:  # whatever the parts of the user's object raise
            raise TaskError(
                f"prepare returned a {type(prepared).__name__} that cannot be kept ({error}): return arrays, or "
                "tuples and dicts of arrays and numbers"
            ) from error


class PreparedBlocks:
    """Prepares the blocks of a mapper, and keeps what it has prepared while the arrays that the job names have the
    same bits."""

    def __init__(self, job: MapReduceJob, most_bytes: int = MOST_BYTES) -> None:
        """With `most_bytes` of 0 nothing is kept."""
        self._job, self._most_bytes = job, most_bytes
        self._key: bytes | None = None
        self._kept: dict[bytes, bytes] = {}
        """Digest of the block -> the prepared block, pickled."""
        self._draws = Random(0)
        self.num_bytes = 0
        """Size of what is kept."""
        self.blocks_prepared = 0
        """By this mapper so far."""

    def of_round(self, state: Arrays) -> Callable[[Any], Any]:
        """A function that returns what `map` gets for a block in a round of this state: a copy of the prepared
        block, or the block itself where the job prepares none. Valid while the state does not change. Raises
        `TaskError` where `prepared_by` names something else than arrays of the state."""
        preparation = preparation_of(self._job, state)
        key = None if preparation is None else preparation.key()
        if key != self._key:
            self._kept.clear()
            self._key, self.num_bytes = key, 0
        if preparation is None:
            return lambda block: block
        return lambda block: self._prepared(preparation, block)

    def _prepared(self, preparation: Preparation, block: Any) -> Any:
        name = digest(block)
        pickled = self._kept.get(name)
        if pickled is None:
            pickled = preparation.pickled(block, name)
            self.blocks_prepared += 1
            self._keep(name, pickled)
        return pickle.loads(pickled)  # noqa: S301 - pickled by this process

    def _keep(self, name: bytes, pickled: bytes) -> None:
        """What has to go is drawn. The block that was not used for longest would be the next one needed wherever
        blocks come in the same order in every epoch, and then none would ever be found."""
        if len(pickled) > self._most_bytes:
            return
        while self.num_bytes + len(pickled) > self._most_bytes:
            dropped = self._draws.choice(list(self._kept))
            self.num_bytes -= len(self._kept.pop(dropped))
        self._kept[name] = pickled
        self.num_bytes += len(pickled)


def preparation_of(job: MapReduceJob, state: Arrays) -> Preparation | None:
    """How the job prepares the blocks of a round of this state; None where it prepares none. Raises `TaskError`
    where `prepared_by` names something else than arrays of the state."""
    if not isinstance(job, PreparingJob):
        return None
    names: Any = job.prepared_by(state)
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TaskError(f"prepared_by returned {names!r}: return a list of names of the state's arrays, or None")
    names = list(names)
    usable = [name for name in state if name != ROUND]
    unknown = [name for name in names if name not in usable]
    if unknown:
        reason = ", and `round` is another number in each round" if ROUND in unknown else ""
        raise TaskError(
            f"prepared_by named {', '.join(map(repr, unknown))}{reason}: name arrays of the state "
            f"({', '.join(usable)})"
        )
    return Preparation(job, {name: state[name] for name in names})


def check_preparation(job: MapReduceJob) -> None:
    """Raise `TaskError` where a job has only one of `prepared_by` and `prepare`."""
    has = [name for name in ("prepared_by", "prepare") if hasattr(job, name)]
    if len(has) == 1:
        other = "prepare" if has[0] == "prepared_by" else "prepared_by"
        raise TaskError(
            f"{type(job).__name__} has `{has[0]}` and no `{other}`: `prepared_by(state)` names the arrays that "
            "`prepare(arrays, block)` is given; add it, or leave out both"
        )


def digest(block: Any) -> bytes:
    """A digest of a block's content. Raises `TaskError` for a block that cannot be pickled."""
    try:
        return hashlib.sha256(pickle.dumps(block, protocol=5)).digest()
    except Exception as error:  # whatever the parts of the user's object raise
        raise TaskError(
            f"a block, a {type(block).__name__}, cannot be told from others ({error}), as jobs with `prepare` "
            "need: have the data set return arrays, or tuples and dicts of arrays and numbers"
        ) from error


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of the array through which it cannot be changed."""
    view = array.view()
    view.flags.writeable = False
    return view


def _compare_rows(block: Any, prepared: Any) -> None:
    """Raise `TaskError` where a prepared block has the form of the block, so is taken for the same examples in
    another form, and has another number of them."""
    before, after = _lengths(block), _lengths(prepared)
    if before.keys() != after.keys() or type(block) is not type(prepared):
        return
    examples = set(before.values())
    for place, length in after.items():
        if len(examples) == 1 and length not in examples:
            raise TaskError(
                f"prepare returned {length} rows{place} for a block of {examples.pop()} examples: return a row "
                "for each example; something else than examples, such as sums over them, goes into a dict"
            )


def _lengths(value: Any, place: str = "") -> dict[str, int]:
    """Place -> number of rows of each array in an array, a tuple, a list or a dict."""
    if isinstance(value, np.ndarray) and value.ndim:
        return {place: len(value)}
    if isinstance(value, Mapping):
        items = [(f" in {name!r}", part) for name, part in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [(f" in {name!r}", part) for name, part in zip(value._fields, value, strict=True)]
    elif isinstance(value, tuple | list):
        items = [(f" at {number}", part) for number, part in enumerate(value)]
    else:
        return {}
    return {where: length for own, part in items for where, length in _lengths(part, f"{place}{own}").items()}
