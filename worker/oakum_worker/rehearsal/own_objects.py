"""A script's own objects: those whose classes and functions no library has made, and that nobody saves."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from types import FrameType
from typing import Any

from torch import nn

LIBRARIES = sys.stdlib_module_names - {"__main__"} | {
    *("torch", "numpy", "torchmetrics", "tqdm", "oakum", "oakum_worker"),
}
"""Packages whose objects are not looked into."""
WRAPPING = frozenset({"accelerate", "lightning", "pytorch_lightning", "transformers"})
"""Packages whose objects are wrapped around what is saved, or saved by the adapters."""
FOREIGN = LIBRARIES | WRAPPING


def package_of(value: object) -> str:
    """Name of the top-level package whose class the value is an object of."""
    return root_of(type(value).__module__)


def root_of(module: str | None) -> str:
    """Name of the top-level package that a module is in; empty for None."""
    return (module or "").partition(".")[0]


def frame_of_script() -> FrameType | None:
    """The frame whose loop asks for a batch; None if that is a library's."""
    frame = inspect.currentframe()
    while frame is not None and _package_of(frame) in LIBRARIES:
        frame = frame.f_back
    return None if frame is None or _package_of(frame) in WRAPPING else frame


def _package_of(frame: FrameType) -> str:
    return root_of(frame.f_globals.get("__name__"))


def identities_of(saved: list[object]) -> set[int]:
    """Identities of the objects that are saved, and of what they are made of."""
    identities = {id(one) for one in saved}
    for one in saved:
        if isinstance(one, nn.Module):
            identities |= {id(part) for part in (*one.modules(), *one.parameters(), *one.buffers())}
        elif hasattr(one, "__dict__"):
            identities |= {id(part) for part in vars(one).values() if not isinstance(part, int | float | str)}
    return identities


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, and those of its module that its code names, but for names that begin with an
    underscore."""
    shared = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    own = shared | dict(frame.f_locals)
    return {name: value for name, value in own.items() if name[:1] != "_"}


def names_made_anew(frame: FrameType) -> frozenset[str]:
    """The names that a `for` loop assigns in each iteration before it reads them. `frame` has to be at the place
    where the loop asks for its next item. Names that are assigned only after a branch do not count."""
    instructions = [one for one in dis.get_instructions(frame.f_code) if one.offset >= frame.f_lasti]
    if not instructions or instructions[0].opname != "FOR_ITER":
        return frozenset()
    is_given_first: dict[str, bool] = {}
    for one in instructions[1:]:
        if one.is_jump_target or one.opcode in _JUMPS:
            break
        if not one.opname.startswith(_OF_VARIABLES):
            continue
        # One instruction may be for two variables, such as STORE_FAST_LOAD_FAST.
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        for name, how in zip(names, _HOW.findall(one.opname), strict=False):
            is_given_first.setdefault(name, how == "STORE")
    return frozenset(name for name, is_given in is_given_first.items() if is_given)


_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_OF_VARIABLES = tuple(f"{how}_{kind}" for how in ("LOAD", "STORE") for kind in ("FAST", "NAME", "GLOBAL", "DEREF"))
_HOW = re.compile("LOAD|STORE")
