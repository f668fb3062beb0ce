"""Ranks that share the GPU, by gloo: what it costs that they become more and fewer, and that some are killed."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.contestants import Oakum
from peers.disturbances import cost_of, disturbances, settle

_COMPUTE_S = 0.02


def main(*, tiny: bool) -> Iterator[dict[str, Any]]:
    """The costs of a round of disturbances; with `tiny` those of the first two alone."""
    nodes = 2 if tiny else 3
    with tempfile.TemporaryDirectory() as folder:
        contestant = Oakum(Path(folder), nodes, "small", _COMPUTE_S)
        contestant.start()
        try:
            settle(contestant, nodes)
            for number, disturbance in enumerate(disturbances(contestant, nodes)):
                if tiny and number > 1:
                    return
                for cost in cost_of(disturbance, contestant, "small", nodes):
                    yield dataclasses.asdict(cost)
        finally:
            contestant.end()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for figure in main(tiny=sys.argv[2] == "tiny"):
        print(json.dumps(figure), flush=True)
