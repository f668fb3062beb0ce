"""What the start of a rank takes until its first step has ended, by part: 6 s are the goal."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(device_name: str, *, tiny: bool) -> dict[str, Any]:
    """Seconds of each part. To be called in a process that has imported nothing."""
    parts: dict[str, float] = {}
    began_s = last_s = time.perf_counter()

    def ended(part: str) -> None:
        nonlocal last_s
        now_s = time.perf_counter()
        parts[part], last_s = now_s - last_s, now_s

    import torch

    ended("import torch")
    from oakum_worker.rank import process
    from oakum_worker.spec import TrainerSpec
    from oakum_worker.step.training_loop import TrainingLoop
    from oakum_worker.task import Task
    from on_gpus.models import build, loss, samples

    assert process
    ended("import Oakum")
    device = torch.device(device_name)
    torch.ones(1, device=device).item()
    ended("initialise the device")
    model = build("transformer", tiny=tiny).to(device)
    task = Task(
        model=model,
        dataset=samples("transformer", 64, tiny=tiny),
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters()),
    )
    loop = TrainingLoop(task, TrainerSpec(name="start", entrypoint="a:b", global_batch=8, epochs=10))
    ended("build the model")
    loop.step()
    ended("first step")
    loop.step()
    ended("second step")
    return {"parts_s": parts, "until_first_step_s": last_s - began_s - parts["second step"], "goal_s": 6.0}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], tiny=sys.argv[2] == "tiny")))
