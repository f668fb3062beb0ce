"""Statistics as bytes between ranks: a line of JSON that names nodes and arrays, then the arrays' bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from oakum_worker.map_reduce.sums import Arrays, Node


def to_bytes(nodes: Mapping[Node, Arrays]) -> np.ndarray:
    """The nodes as an array of bytes, shape (n,)."""
    head = [
        [node, [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]]
        for node, arrays in nodes.items()
    ]
    parts = [json.dumps(head).encode() + b"\n"]
    parts += [np.ascontiguousarray(array).tobytes() for arrays in nodes.values() for array in arrays.values()]
    return np.frombuffer(b"".join(parts), dtype=np.uint8).copy()


def from_bytes(sent: np.ndarray) -> dict[Node, Arrays]:
    """The nodes in bytes that `to_bytes` made; the inverse function."""
    whole = sent.tobytes()
    head, _, body = whole.partition(b"\n")
    nodes: dict[Node, Arrays] = {}
    start = 0
    for (level, index), fields in json.loads(head):
        arrays: dict[str, Any] = {}
        for name, kind, shape in fields:
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=start)
            arrays[name] = array.reshape(shape)
            start += array.nbytes
        nodes[level, index] = arrays
    return nodes
