"""One epoch of a Hugging Face `Trainer` that is stopped in its middle and goes on with another number of ranks.

    python rescaled_epoch.py FOLDER RANK

As a program it is one of two ranks of the plain library: it begins an epoch and stops, then goes on with the epoch
that `begin_alone` has begun. What the ranks learnt from is left in FOLDER as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

NUM_SAMPLES = 64
PER_RANK = 4
"""Samples that a rank of the plain library takes in a step."""
STOP_AFTER = {1: 6, 2: 3}
"""Ranks -> steps after which these ranks stop: 24 samples, as far as the library counts them."""
WORLD = 2


class Numbered(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples that are their own numbers."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": index, "inputs": torch.tensor([index / NUM_SAMPLES]), "labels": torch.tensor([1.0])}


class Line(torch.nn.Module):
    """A model of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.linear(inputs)
        return {"loss": (out - labels).square().mean(), "logits": out}


def arguments(folder: Path, **changes: Any) -> Any:
    """Arguments for one epoch."""
    from transformers import TrainingArguments

    fields = {
        "output_dir": str(folder),
        "per_device_train_batch_size": PER_RANK,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**(fields | changes))


def counting(kind: Any, learnt: list[int]) -> Any:
    """A subclass of a `Trainer` that notes the numbers of the samples it learns from."""

    class Counting(kind):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
            inputs = dict(inputs)
            learnt.extend(inputs.pop("number").tolist())
            return super().compute_loss(model, inputs, *others, **named)

    return Counting


def part_of_epoch(folder: Path, *, stop_after: int = 0, resume: str | None = None) -> list[int]:
    """Train with the plain library up to a step, where a checkpoint is written, or from a checkpoint to the end of
    the epoch. Returns the numbers of the samples that this rank learnt from."""
    import transformers

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = control.should_save = state.global_step == stop_after

    learnt: list[int] = []
    trainer = counting(transformers.Trainer, learnt)(
        Line(), arguments(folder), train_dataset=Numbered(), callbacks=[Stop()] if stop_after else []
    )
    trainer.train(resume_from_checkpoint=resume)
    return learnt


def begin_alone(folder: Path) -> list[int]:
    """Begin an epoch on one rank, and stop; returns what it learnt from."""
    return part_of_epoch(folder / "by-1", stop_after=STOP_AFTER[1])


def finish_alone(folder: Path) -> list[int]:
    """Go on, on one rank, with the epoch that two ranks have begun; returns what it learnt from."""
    return part_of_epoch(folder / "rest", resume=str(folder / "by-2" / f"checkpoint-{STOP_AFTER[2]}"))


def visits(*parts: list[int]) -> dict[str, int]:
    """How many samples of an epoch were learnt from once, more often, and never."""
    counts = Counter(number for part in parts for number in part)
    return {
        "once": sum(count == 1 for count in counts.values()),
        "twice or more": sum(count > 1 for count in counts.values()),
        "never": NUM_SAMPLES - len(counts),
    }


def _run_as_rank(folder: Path, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # asked for, though the file below is used
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD)
    begun = part_of_epoch(folder / "by-2", stop_after=STOP_AFTER[2])
    resumed = part_of_epoch(folder / "rest", resume=str(folder / "by-1" / f"checkpoint-{STOP_AFTER[1]}"))
    (folder / f"rank-{rank}.json").write_text(json.dumps({"begun": begun, "resumed": resumed}), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _run_as_rank(Path(sys.argv[1]), int(sys.argv[2]))
