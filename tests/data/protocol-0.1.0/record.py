"""Writes down what version 0.1.0 sends: each message with all its fields, and with those alone that it must have;
and the words that a field may be.

Run by that version's own code, from a checkout of it, as `PYTHONPATH=worker python record.py FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from oakum_worker.protocol import Directive, FragmentConfig, FragmentReport, Held, Phase  # type: ignore[attr-defined]

_ENDPOINTS = [{"host": "10.0.0.1", "port": 4000}, {"host": "10.0.0.1", "port": 4001}]
_PROGRESS = {
    "generation": 3, "nodes": 2, "step": 40, "total_steps": 90, "epoch": 1, "samples": 3840, "total_samples": 8640,
    "global_batch": 96, "learning_rate": 0.01, "loss": 0.5, "samples_per_s": 812.5, "checkpoint_step": 30,
    "predicted_curve": [[1, 500.0], [2, 900.0]], "metrics": {"accuracy": 0.875}, "final": True,
}  # fmt: skip
_CRASH = {
    "number": 1, "generation": 2, "step": 20, "message": "a rank was killed", "identity": "OOM task.py:7",
    "is_explained": True, "traceback": "Traceback: ...",
}  # fmt: skip
_FAILURE = {
    "stage": "train", "step": 40, "message": "the task raised ValueError", "identity": "ValueError task.py:7",
    "traceback": "Traceback: ...",
}  # fmt: skip
_REPORT = {
    "phase": "failed", "sequence": 7, "pid": 4711, "host": "n1", "ranks": _ENDPOINTS, "generation": 3, "broken": 2,
    "holds": "memory", "startup_s": 3.5, "progress": _PROGRESS,
    "pace": {"steps": 4, "seconds": 2.0, "reading_s": 0.5, "waiting_s": 0.25},
    "switches": [{"generation": 3, "step": 30, "stall_s": 0.5, "step_s": 0.25, "source": "survivor"}],
    "failure": _FAILURE, "crashes": [_CRASH], "signalled": True, "signalled_at": 1700000000.0,
    "warnings": ["a corrupt checkpoint was skipped"],
}  # fmt: skip
_GENERATION = {
    "number": 3, "closer": "f1", "has_state": True,
    "members": [
        {"fragment": "f1", "node": "n1", "ranks": _ENDPOINTS},
        {"fragment": "f2", "node": "n2", "ranks": []},
    ],
}  # fmt: skip
_SPEC = {"name": "digits", "entrypoint": "tasks.digits:task", "global_batch": 96, "epochs": 2}
_CONFIG = {
    "fragment": "f1", "trainer": "digits", "node": "n1", "node_address": "10.0.0.1",
    "service_url": "http://service.test", "token": "a secret", "spec": _SPEC,
    "checkpoint_dir": "/data/checkpoints",
}  # fmt: skip
_MESSAGES: dict[str, tuple[type[BaseModel], dict[str, object]]] = {
    "report": (FragmentReport, _REPORT),
    "first-report": (FragmentReport, {"phase": "warming", "sequence": 0, "pid": 1, "host": "n1"}),
    "directive": (Directive, {"revision": 5, "generation": _GENERATION, "over": 2, "leave": True}),
    "first-directive": (Directive, {"revision": 0}),
    "config": (FragmentConfig, {**_CONFIG, "service_file": "/data/service.json", "leave_deadline_s": 2.0}),
}


def main(folder: Path) -> None:
    """Write each message as this version's agents and service write it."""
    for name, (model, fields) in _MESSAGES.items():
        document = json.loads(model.model_validate(fields).model_dump_json())
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    words = {"phases": list(Phase), "holds": list(Held)}
    (folder / "words.json").write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
