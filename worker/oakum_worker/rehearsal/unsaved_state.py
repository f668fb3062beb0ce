"""State that a script changes from step to step and that nobody saves: a node that joins knows nothing of it.

It is looked for where scripts keep it: in the variables of the function whose loop it is, in objects of classes of
the script's own, in callbacks, and in attributes of the model's modules. What counts is what has changed in the
first step: tensors, models, generators, numbers, iterators, and what holds these. Sums of losses, times, texts,
and lists of numbers are taken for what a loop logs."""

from __future__ import annotations

import dis
import gc
import inspect
import itertools
import math
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from types import BuiltinFunctionType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from oakum_worker.listing import some_of
from oakum_worker.torch_internals import tensor_version

_DEEPEST, _MOST_ITEMS, _MOST_NAMES = 3, 1000, 8
_LIBRARIES = sys.stdlib_module_names - {"__main__"} | {
    *("torch", "numpy", "torchmetrics", "tqdm", "oakum", "oakum_worker"),
}
"""Packages whose objects are not looked into."""
_CODE = (ModuleType, type, FunctionType, MethodType, BuiltinFunctionType)
_WRAPPING = frozenset({"accelerate", "lightning", "pytorch_lightning", "transformers"})
"""Packages whose objects are wrapped around what is saved, or saved by the adapters."""


class UnsavedState:
    """What a script's variables, callbacks and modules held before the first step, by which state that has changed
    since, and that nobody saves, can be named."""

    def __init__(
        self,
        frame: FrameType | None,
        holders: Mapping[str, object],
        saved: list[object],
        iterator: object = None,
    ) -> None:
        """Looks at the variables of `frame`, at the `holders`, by what they are called, and at the modules in
        `saved`, which are the objects whose state is saved: models, optimizers and parts of the state. `iterator`
        is what the loop goes through."""
        own = {name: one for name, one in holders.items() if _package(one) not in _LIBRARIES | _WRAPPING}
        self._frame, self._holders = frame, own
        self._is_enumerated = any(isinstance(one, enumerate) for one in gc.get_referrers(iterator))
        self._known = _known(saved)
        self._modules = [one for one in saved if isinstance(one, nn.Module)]
        self._before, self._clocks = self._take(), _clocks()

    def told(self, loss: float) -> str | None:
        """A text that names what has changed since; None if nothing has. A number that has grown by the step's
        `loss`, or that tells the time, is none of it."""
        before, after = self._before, self._take()
        changed = [
            n for n, seen in after.items() if n in before and _has_changed(before[n], seen, loss, self._clocks)
        ]
        if self._is_enumerated:
            changed.insert(0, "the number that enumerate() counts, for which there is session.steps")
        if not changed:
            return None
        return (
            f"{some_of(changed, _MOST_NAMES)} changed in the first step, and nothing saves it: "
            "on a node that joins, and after a restart, it begins anew. Let it follow from the number of "
            "finished steps, or keep it in an object with state_dict and load_state_dict that is handed over as "
            "state. A callback has state_dict for it with Lightning, and is an ExportableState with Hugging "
            "Face"
        )

    def release(self) -> None:
        """Forget the variables, and the objects in them."""
        self._frame, self._before = None, {}
        self._holders.clear()

    def _take(self) -> dict[str, Any]:
        """Where -> what would differ if the state there had changed."""
        found: dict[str, Any] = {}
        if self._frame is not None:
            for name, value in _variables(self._frame).items():
                if not name.startswith("_") and not isinstance(value, _CODE):
                    found |= self._prints(f"`{name}`", value)
        for name, holder in self._holders.items():
            found |= self._attributes(name, holder)
        for model in self._modules:
            for path, module in model.named_modules():
                if _package(module) not in _LIBRARIES:
                    found |= self._attributes(f"the model's {path}" if path else "the model", module)
        return found

    def _attributes(self, where: str, holder: object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        of_libraries = _set_by_libraries(type(holder))  # type: ignore[arg-type]
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if not name.startswith("_") and name not in of_libraries:
                found |= self._prints(f"{where}'s `{name}`", value)
        return found

    def _prints(self, where: str, value: Any) -> dict[str, Any]:
        prints = list(self._of(value, 0))
        return {where: prints} if prints else {}

    def _of(self, value: Any, depth: int) -> Iterator[Any]:
        """What changes with the state in a value; nothing if it holds none, or if that is saved."""
        if id(value) in self._known or depth > _DEEPEST:
            return
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not depth or isinstance(value, int):
                yield value
        elif isinstance(value, torch.Tensor):
            yield id(value), tensor_version(value)
        elif isinstance(value, nn.Module):
            own = [one for one in (*value.parameters(), *value.buffers()) if id(one) not in self._known]
            yield from ((id(one), tensor_version(one)) for one in own)
        elif (state := _generator(value)) is not None:
            yield state
        elif (place := _place(value)) is not None:
            yield place
        elif isinstance(value, Mapping | list | tuple | deque):
            if len(value) <= _MOST_ITEMS:
                items = list(value.values() if isinstance(value, Mapping) else value)
                # Numbers in a list are what a loop has logged; under a name they are counted.
                for item in items if isinstance(value, Mapping) else [i for i in items if not isinstance(i, int)]:
                    yield from self._of(item, depth + 1)
        elif _package(value) in _WRAPPING:
            return
        elif callable(getattr(value, "state_dict", None)) and not isinstance(value, Optimizer):
            yield repr(_plain(value))
        elif hasattr(value, "__dict__") and _package(value) not in _LIBRARIES:
            for item in list(vars(value).values()):
                yield from self._of(item, depth if isinstance(item, float) else depth + 1)


@cache
def _set_by_libraries(of: type) -> frozenset[str]:
    """The attributes that the libraries among the bases of a class set themselves."""
    libraries = [one for one in of.__mro__ if one.__module__.partition(".")[0] in _LIBRARIES | _WRAPPING]
    codes = [one.__code__ for base in libraries for one in vars(base).values() if isinstance(one, FunctionType)]
    instructions = itertools.chain.from_iterable(map(dis.get_instructions, codes))
    return frozenset(one.argval for one in instructions if one.opname == "STORE_ATTR")


def _clocks() -> tuple[float, ...]:
    return time.time(), time.monotonic(), time.perf_counter()


def _has_changed(before: list[Any], after: list[Any], loss: float, clocks: tuple[float, ...]) -> bool:
    if before == after:
        return False
    if len(before) == len(after) == 1 and isinstance(before[0], float) and isinstance(after[0], float):
        is_sum = math.isclose(after[0] - before[0], loss, rel_tol=1e-4)
        is_time = any(begun <= after[0] <= now for begun, now in zip(clocks, _clocks(), strict=True))
        return not (is_sum or is_time)
    return True


def _variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, and those of its module that its code names."""
    shared = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    return shared | dict(frame.f_locals)


def _place(value: Any) -> Any:
    """How far an iterator has gone; None for anything else."""
    if isinstance(value, GeneratorType) and value.gi_frame is not None:
        numbers = [one for one in value.gi_frame.f_locals.values() if isinstance(one, int)]
        return value.gi_frame.f_lasti, numbers
    if type(value).__name__.endswith("DataLoaderIter"):
        return vars(value).get("_num_yielded")
    return repr(value) if isinstance(value, itertools.count) else None


def _known(saved: list[object]) -> set[int]:
    """Identities of the objects that are saved, and of what they are made of."""
    known = {id(one) for one in saved}
    for one in saved:
        if isinstance(one, nn.Module):
            known |= {id(part) for part in (*one.modules(), *one.parameters(), *one.buffers())}
        elif hasattr(one, "__dict__"):
            known |= {id(part) for part in vars(one).values() if not isinstance(part, int | float | str)}
    return known


def _generator(value: Any) -> Any:
    """The state of a random generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy")
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


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def frame_of_script() -> FrameType | None:
    """The frame whose loop asks for a batch; None if that is a library's."""
    frame = inspect.currentframe()
    while frame is not None and _package_of(frame) in _LIBRARIES:
        frame = frame.f_back
    return None if frame is None or _package_of(frame) in _WRAPPING else frame


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
