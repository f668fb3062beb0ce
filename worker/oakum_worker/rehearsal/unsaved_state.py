"""State that a script changes from step to step and that nobody saves: a node that joins knows nothing of it.

It is looked for where scripts keep it: in the variables of the function whose loop it is, in objects, classes and
functions of the script's own, in callbacks, and in attributes of the model's modules, of the data set and of
optimizers. What counts is what has changed from one look to the next: tensors, arrays, models, generators,
numbers, iterators, and what holds these. Losses, their sums and means, times, texts, and lists of numbers are
taken for what a loop logs."""

from __future__ import annotations

import dis
import gc
import itertools
import math
import operator
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from oakum_worker.listing import some_of
from oakum_worker.rehearsal.logged_numbers import LoggedNumbers
from oakum_worker.rehearsal.own_objects import (
    FOREIGN,
    LIBRARIES,
    WRAPPING,
    identities_of,
    names_made_anew,
    package_of,
    root_of,
    variables_of,
)
from oakum_worker.torch_internals import tensor_version

_DEEPEST, _MOST_ITEMS, _MOST_NAMES = 3, 1000, 8
_LAST_LOOK = 65
"""Step after which nothing is looked at any more."""
_MOST_ELEMENTS = 1 << 20
"""Of an array of NumPy's that is looked at."""
_NOTHING = "nothing yet"
_AROUND: dict[type, str] = {
    enumerate: "the number that enumerate() counts, for which there is session.steps",
    zip: "what zip() gives beside the batches",
}


class UnsavedState:
    """Finds state of a script that training changes and no checkpoint saves: compares what its variables,
    callbacks and modules hold after a step with what they held before."""

    def __init__(
        self,
        frame: FrameType | None,
        holders: Mapping[str, object],
        saved: list[object],
        iterator: object = None,
        dataset: object = None,
    ) -> None:
        """Looks at the variables of `frame`, at the `holders`, by what they are called, and at the modules and
        optimizers in `saved`, which are the objects whose state is saved: models, optimizers and parts of the
        state. `iterator` is what the loop goes through. Of the `dataset` only numbers are looked at, as it may
        keep what it has read."""
        own = {name: one for name, one in holders.items() if package_of(one) not in FOREIGN}
        optimizers = [one for one in saved if isinstance(one, Optimizer) and package_of(one) not in LIBRARIES]
        own |= {f"the optimizer {type(one).__name__}": one for one in optimizers}
        self._frame, self._holders, self._dataset = frame, own, dataset
        self._made_anew = names_made_anew(frame) if frame is not None else frozenset()
        referrers = gc.get_referrers(iterator)
        referrers += [one for held in referrers if isinstance(held, tuple) for one in gc.get_referrers(held)]
        self._around = [text for kind, text in _AROUND.items() if any(isinstance(one, kind) for one in referrers)]
        self._saved_ids = identities_of([*saved, iterator])
        self._modules = [one for one in saved if isinstance(one, nn.Module)]
        self._named: set[str] = set()
        self._losses: list[float] = []
        self._before, self._clocks = self._take(), _clocks()
        self.logged = LoggedNumbers(frame, own, self._saved_ids)

    @property
    def is_done(self) -> bool:
        """Whether no later step is looked at."""
        return len(self._losses) >= _LAST_LOOK

    def find_changes(self, loss: float, epoch: int = 0) -> str | None:
        """After a step with this loss, when `epoch` epochs are finished, a text that names what has changed and
        was not named before; None if nothing has. Looks after steps 1, 2, 3, 5, 9 and so on."""
        self._losses.append(loss)
        passed = len(self._losses) - 1
        if passed & (passed - 1):  # no power of two
            return None
        before, after = self._before, self._take()
        is_logged = _Logged(self._losses, epoch, self._clocks)
        changed = [n for n, now in after.items() if n in before and _has_changed(before[n], now, is_logged)]
        changed = [name for name in (*self._around, *changed) if name not in self._named]
        # Only of what was there before the loop: the rest is the loop's own, made anew in each iteration.
        self._before = {name: after[name] for name in before if name in after}
        self._named |= {*changed}
        if not changed:
            return None
        when = "the first step" if not passed else f"the first {passed + 1} steps"
        return (
            f"{some_of(changed, _MOST_NAMES)} changed in {when}, and nothing saves it: "
            "on a node that joins, and after a restart, it begins anew. Let it follow from the number of "
            "finished steps, or keep it in an object with state_dict and load_state_dict that is handed over as "
            "state. A callback has state_dict for it with Lightning, and is an ExportableState with Hugging "
            "Face"
        )

    def release(self) -> None:
        """Forget the variables, and the objects in them."""
        self._frame, self._dataset, self._before = None, None, {}
        self.logged.release()
        self._holders.clear()

    def _take(self) -> dict[str, Any]:
        """Where -> what would differ if the state there had changed."""
        prints: dict[str, Any] = {}
        if self._frame is not None:
            for name, value in variables_of(self._frame).items():
                if name not in self._made_anew:
                    prints |= self._prints(f"`{name}`", value)
        for name, value in _numbers_of_data_set(self._dataset).items():
            prints[f"the data set's `{name}`"] = [value]
        for name, holder in self._holders.items():
            prints |= self._attributes(name, holder)
        for model in self._modules:
            for path, module in model.named_modules():
                if package_of(module) not in LIBRARIES:
                    prints |= self._attributes(f"the model's {path}" if path else "the model", module)
        return prints

    def _attributes(self, where: str, holder: object) -> dict[str, Any]:
        prints: dict[str, Any] = {}
        of_libraries = _set_by_libraries(type(holder))  # type: ignore[arg-type]
        for name, value in (_of_class(type(holder)) | dict(getattr(holder, "__dict__", {}))).items():
            if not name.startswith("_") and name not in of_libraries:
                prints |= self._prints(f"{where}'s `{name}`", value)
        return prints

    def _prints(self, where: str, value: Any) -> dict[str, Any]:
        return {where: [_NOTHING] if value is None else list(self._of(value, 0))}

    def _of(self, value: Any, depth: int) -> Iterator[Any]:
        """What changes with the state in a value; nothing if it holds none, or if that is saved."""
        if id(value) in self._saved_ids or depth > _DEEPEST:
            return
        if isinstance(value, int | float):
            if not depth or isinstance(value, int):
                yield value
        elif isinstance(value, torch.Tensor):
            yield id(value), tensor_version(value)
        elif isinstance(value, nn.Module):
            own = [one for one in (*value.parameters(), *value.buffers()) if id(one) not in self._saved_ids]
            yield from ((id(one), tensor_version(one)) for one in own)
            for module in value.modules():
                yield from _numbers(module).values()
        elif isinstance(value, FunctionType | type):
            yield from self._of_code(value, depth)
        elif isinstance(value, ModuleType | MethodType | BuiltinFunctionType):
            return
        elif (state := _generator(value)) is not None:
            yield state
        elif (place := _place(value)) is not None:
            yield place
        elif isinstance(value, Mapping | list | tuple | deque):
            yield from self._of_items(value, depth)
        elif package_of(value) in WRAPPING:
            return
        elif callable(getattr(value, "state_dict", None)) and not isinstance(value, Optimizer):
            yield repr(_plain(value))
        elif hasattr(value, "__dict__") and package_of(value) not in LIBRARIES:
            for item in list(vars(value).values()):
                yield from self._of(item, depth if isinstance(item, float) else depth + 1)

    def _of_items(self, container: Any, depth: int) -> Iterator[Any]:
        if len(container) > _MOST_ITEMS:
            return
        if isinstance(container, Mapping):
            for item in list(container.values()):
                yield from self._of(item, depth if isinstance(item, float) else depth + 1)
            return
        # Numbers in a list are what a loop has logged; under a name they are counted.
        for item in list(container):
            if not (isinstance(item, int) or (isinstance(item, torch.Tensor) and item.numel() == 1)):
                yield from self._of(item, depth + 1)

    def _of_code(self, code: Any, depth: int) -> Iterator[Any]:
        """What a function of the script's own keeps in variables around it and in attributes, or a class in
        its."""
        if root_of(code.__module__) in FOREIGN:
            return
        kept = list(vars(code).values())
        if isinstance(code, FunctionType):
            kept += [cell.cell_contents for cell in code.__closure__ or () if _is_filled(cell)]
            kept += [code.__globals__[n] for n in code.__code__.co_names if n in code.__globals__]
        for one in kept:
            if isinstance(one, int | float | torch.Tensor | list | deque | dict):
                yield from self._of(one, depth if isinstance(one, float) else depth + 1)


@cache
def _set_by_libraries(of: type) -> frozenset[str]:
    """The attributes that the libraries among the bases of a class set themselves."""
    libraries = [one for one in of.__mro__ if root_of(one.__module__) in FOREIGN]
    codes = [one.__code__ for base in libraries for one in vars(base).values() if isinstance(one, FunctionType)]
    instructions = itertools.chain.from_iterable(map(dis.get_instructions, codes))
    return frozenset(one.argval for one in instructions if one.opname == "STORE_ATTR")


def _clocks() -> tuple[float, ...]:
    return time.time(), time.monotonic(), time.perf_counter()


class _Logged:
    """Answers whether a number is one that a loop logs, or is given: the newest loss, a sum or a mean of losses, a
    time, the number of the epoch."""

    def __init__(self, losses: list[float], epoch: int, clocks: tuple[float, ...]) -> None:
        self._losses, self._epoch, self._clocks = losses, epoch, clocks

    def __call__(self, before: Any, after: Any) -> bool:
        if isinstance(after, float) and self._is_time(after):
            return True
        if isinstance(before, bool) or isinstance(after, bool) or not isinstance(before, int | float):
            return False
        if isinstance(after, int):
            return before == after - 1 and after in (self._epoch, self._epoch - 1)
        if not isinstance(after, float) or not math.isfinite(before):  # not finite: the best so far
            return False
        sums = [*itertools.accumulate(reversed(self._losses))]
        logged = [self._losses[-1], sums[-1], sums[-1] / len(sums), *(before + one for one in sums)]
        return any(math.isclose(after, one, rel_tol=1e-4) for one in logged)

    def _is_time(self, number: float) -> bool:
        return any(begun <= number <= now for begun, now in zip(self._clocks, _clocks(), strict=True))


def _has_changed(before: list[Any], after: list[Any], is_logged: _Logged) -> bool:
    if before == after or (before == [_NOTHING] and not after) or after == [_NOTHING]:
        return False
    if len(before) != len(after):
        return True
    return any(not (one == other or is_logged(one, other)) for one, other in zip(before, after, strict=True))


def _numbers(holder: object) -> dict[str, int | float]:
    """The numbers that an object of a class of the script's own holds under names."""
    if holder is None or package_of(holder) in FOREIGN:
        return {}
    attributes = getattr(holder, "__dict__", {}).items()
    return {n: v for n, v in list(attributes) if isinstance(v, int | float) and n[:1] != "_" and n != "training"}


def _numbers_of_data_set(dataset: Any) -> dict[str, int | float]:
    """Those of a data set, of its class, and of the data sets that it is a view of, as `Subset` is."""
    numbers: dict[str, int | float] = {}
    for _ in range(_DEEPEST):
        of_class = {n: v for n, v in _of_class(type(dataset)).items() if v is not None and n[:1] != "_"}
        numbers = of_class | _numbers(dataset) | numbers
        dataset = getattr(dataset, "dataset", None)
    return numbers


def _of_class(of: type) -> dict[str, Any]:
    """The numbers, and what is nothing yet, that classes of the script's own give to their objects."""
    own = [one for one in of.__mro__ if root_of(one.__module__) not in FOREIGN]
    return {n: v for one in reversed(own) for n, v in vars(one).items() if v is None or isinstance(v, int | float)}


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not assigned yet
        return False


def _place(value: Any, depth: int = 0) -> Any:
    """How far an iterator has gone; None for anything else."""
    if isinstance(value, GeneratorType) and value.gi_frame is not None:
        numbers = [one for one in value.gi_frame.f_locals.values() if isinstance(one, int)]
        return value.gi_frame.f_lasti, numbers
    if type(value).__name__.endswith("DataLoaderIter"):
        return vars(value).get("_num_yielded")
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, Iterator) and package_of(value) in ("builtins", "itertools") and depth <= _DEEPEST:
        # What it goes through, and what `cycle` has kept to give it again.
        held = gc.get_referents(value)
        within = [_place(one, depth + 1) for one in held if isinstance(one, Iterator)]
        kept = [len(one) for one in held if isinstance(one, list)]
        return operator.length_hint(value), within, kept
    return None


def _generator(value: Any) -> Any:
    """The state of a random generator, and the content of an array; None for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return hash(value.tobytes()) if value.size <= _MOST_ELEMENTS else None
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return repr(value.get_state()[1:])
    return None


def _plain(value: Any) -> Any:
    """What an object says of its own state, in plain values."""
    try:
        state = value.state_dict()
        return {name: each for name, each in state.items() if isinstance(each, int | float | str | list | tuple)}
    except Exception:  # whatever the script's own class raises
        return None
