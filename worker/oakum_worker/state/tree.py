"""Splits a state into tensors by path and a JSON document that describes its structure.

So neither sending nor storing a state needs pickle, which would run any code that it is given. Plain values stay
in the document; JSON's decimal form of a float restores the same bits.

    {"model": {"w": tensor}, "lr": (0.1, 0.2)}
    -> {"model": {"w": {"$tensor": "model.w", "dtype": "float32", "shape": [3]}}, "lr": {"$tuple": [0.1, 0.2]}}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Document = Any
"""What `json` can write: dicts with string keys, lists, strings, numbers, booleans and None."""


def dismantle(state: Any, path: str = "") -> tuple[Document, dict[str, torch.Tensor]]:
    """The state's document, and its tensors by path, detached but not copied.

    Raises `TypeError` with the path of a value that is neither a tensor, a container nor a plain value.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _dismantle(state, path, tensors), tensors


def assemble(document: Document, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The state that `dismantle` took apart."""
    if isinstance(document, list):
        return [assemble(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    if "$tensor" in document:
        return tensors[document["$tensor"]]
    if "$tuple" in document:
        return tuple(assemble(document["$tuple"], tensors))
    if "$items" in document:
        items = {assemble(key, tensors): assemble(value, tensors) for key, value in document["$items"]}
        return Counter(items) if document.get("counter") else items
    return {key: assemble(value, tensors) for key, value in document.items()}


def empty_tensors(document: Document) -> dict[str, torch.Tensor]:
    """Path -> uninitialised CPU tensor with the type and shape given in the document, in the document's order."""
    return {
        leaf["$tensor"]: torch.empty(leaf["shape"], dtype=getattr(torch, leaf["dtype"]))
        for leaf in tensor_leaves(document)
    }


def tensor_leaves(document: Document) -> Iterator[dict[str, Any]]:
    """Yield the document's entries that describe tensors by path, type and shape."""
    if isinstance(document, dict) and "$tensor" in document:
        yield document
    elif isinstance(document, dict | list):
        for item in document.values() if isinstance(document, dict) else document:
            yield from tensor_leaves(item)


def _dismantle(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Document:
    if isinstance(value, torch.Tensor):
        while path in tensors:  # Keys with dots in them can lead to the same path.
            path += "'"
        tensors[path] = value.detach()
        return {"$tensor": path, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return _dismantle_mapping(value, path, tensors)
    if isinstance(value, list | tuple):
        items = [_dismantle(item, _join(path, index), tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise TypeError(
        f"{path} is a {type(value).__name__}: a state holds tensors, numbers, strings and containers of them"
    )


def _dismantle_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]) -> Document:
    pairs = {key: _dismantle(item, _join(path, key), tensors) for key, item in value.items()}
    is_counter = isinstance(value, Counter)
    if not is_counter and all(isinstance(key, str) and not key.startswith("$") for key in pairs):
        return pairs
    items = [[_dismantle(key, path, tensors), item] for key, item in pairs.items()]
    return {"$items": items, "counter": is_counter}


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
