"""Describes what is wrong with a spec, in one line for each thing to change. Imports no torch."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from oakum_worker.errors import fault_of

_OFTEN_MEANT = {
    "accumulation": "micro_batch",
    "amp": "precision",
    "args": "arguments",
    "batch": "global_batch",
    "batchsize": "global_batch",
    "batch_size": "global_batch",
    "comment": "notes",
    "description": "notes",
    "dtype": "precision",
    "function": "entrypoint",
    "gpus": "ranks_per_node",
    "gpus_per_node": "ranks_per_node",
    "gradient_clip": "clip_grad_norm",
    "kwargs": "arguments",
    "labels": "tags",
    "main": "entrypoint",
    "nodes": "max_nodes",
    "num_nodes": "max_nodes",
    "num_workers": "workers",
    "params": "arguments",
    "random_seed": "seed",
    "threads": "threads_per_rank",
    "working_dir": "workdir",
}
"""Names of fields in other tools -> names in the spec, where the two are not similar."""
_IN_THE_TASK = ("lr", "learning_rate", "optimizer", "scheduler", "model", "dataset", "loss")
_MOST_TOLD = 50
"""Most things that are told to be wrong."""
_LONGEST_NAME = 63
"""Characters of a name above which no similar one is looked for."""
_FEW = 12
"""The most fields of a part of the spec that a message lists; for more it refers to the documentation."""


def explain_errors(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line of text for each thing that is wrong: the field, what was given, and what to do.

    A value that fits none of the types that its field may have gives one line, and so does a required field whose
    name is misspelt. Of more than 50 things that are wrong, the first ones are told.
    """
    faults = error.errors(include_url=False, include_context=False)
    by_place = itertools.groupby(faults, key=lambda item: _place(item["loc"], model))
    lines, missing, meant = [], {}, set()
    for place, group in itertools.islice(by_place, _MOST_TOLD):
        items = [dict(item) for item in group]
        if items[0]["type"] == "extra_forbidden":
            similar = _similar(place, model)
            meant.add(similar)
            lines.append(_unknown(place, similar, model))
        elif items[0]["type"] == "missing":
            missing[".".join(map(str, place))] = len(lines)
            lines.append(f"{'.'.join(map(str, place))}: required and not given")
        else:
            lines.append(f"{'.'.join(map(str, place)) or 'spec'}: {_describe(items)}")
    once = {missing[name] for name in meant & missing.keys() if name is not None}
    shown = [line for number, line in enumerate(lines) if number not in once]
    return [*shown, "and more, of which these are the first"] if next(by_place, None) is not None else shown


def _describe(items: Sequence[dict[str, Any]]) -> str:
    messages = [fault_of(item) for item in items]
    if len(items) == 1:
        return messages[0]
    kinds = [message.removeprefix("Input should be ").split(", unable")[0] for message in messages]
    return f"{items[0]['input']!r} should be {' or '.join(kinds)}"


def _unknown(place: Sequence[int | str], similar: str | None, model: type[BaseModel]) -> str:
    name = ".".join(map(str, place))
    if similar is not None:
        return f"unknown field {name!r}: did you mean `{similar}`?"
    if place[-1] in _IN_THE_TASK:
        return f"unknown field {name!r}: remove it; it belongs in the Task that the entrypoint returns"
    fields = list(_model_at(place[:-1], model).model_fields)
    use = f"use one of: {', '.join(fields)}"
    advice = use if len(fields) <= _FEW else "see the fields in docs/trainer/README.md"
    return f"unknown field {name!r}: remove it, or {advice}"


def _similar(place: Sequence[int | str], model: type[BaseModel]) -> str | None:
    """The field, in this part of the spec or in another, that was probably meant; None where none is similar."""
    *parts, name = map(str, place)
    siblings = list(_model_at(parts, model).model_fields)
    if not parts and (usual := _OFTEN_MEANT.get(name.lower())) is not None:
        return usual
    if len(name) <= _LONGEST_NAME and (close := difflib.get_close_matches(name, siblings, n=1, cutoff=0.7)):
        return ".".join([*parts, *close])
    elsewhere = [path for path in _paths(model) if path.rsplit(".", 1)[-1] == name]
    return elsewhere[0] if len(elsewhere) == 1 else None


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The full name, such as `parallel.data`, of every field of the model and of its parts."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if (part := _part(field.annotation)) is not None:
            yield from _paths(part, f"{prefix}{name}.")


def _place(location: Sequence[int | str], model: type[BaseModel]) -> tuple[int | str, ...]:
    """The names that lead to a field, from an error's location in pydantic's form, which may end with the type
    that pydantic tried."""
    current: type[BaseModel] | None = model
    for depth, part in enumerate(location):
        field = None if current is None else current.model_fields.get(str(part))
        if field is None:
            break
        if len(_kinds(field.annotation)) > 1:
            return tuple(location[: depth + 1])
        current = _part(field.annotation)
    return tuple(location)


def _model_at(place: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel]:
    """The model in which the field at this place is, of which positions in lists may be parts."""
    for part in place:
        field = model.model_fields.get(str(part))
        if field is not None:  # otherwise a position, of an item of the model that the list has led to
            model = _part(field.annotation) or _item(field.annotation) or model
    return model


def _kinds(annotation: Any) -> list[Any]:
    """The types that a field may be of, None left out."""
    if get_origin(annotation) in (Literal, dict, tuple, list):
        return [annotation]
    return [kind for kind in get_args(annotation) if kind is not type(None)] or [annotation]


def _part(annotation: Any) -> type[BaseModel] | None:
    """The model of the part of the spec that a field holds, or None."""
    models = (kind for kind in _kinds(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel))
    return next(models, None)


def _item(annotation: Any) -> type[BaseModel] | None:
    """The model of the items of a list that a field holds, or None."""
    return next((part for kind in get_args(annotation) if (part := _part(kind)) is not None), None)
