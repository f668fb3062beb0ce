"""An epoch whose number of ranks changes: which samples are learnt from, by the plain library and by Oakum's.

The need is huggingface/transformers#40245: steps of the checkpoint are taken for as many batches of the new size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rescaled_epoch
from oakum_worker.spec import TrainerSpec
from rescaled_epoch import NUM_SAMPLES, PER_RANK, WORLD, Line, Numbered, arguments, counting, visits
from session_ranks import Plan, Rank, Stage
from waiting import DEADLINE_S

pytestmark = pytest.mark.needs("hugging-face")


@pytest.mark.soak
def test_the_plain_library_loses_samples_or_reads_them_twice(tmp_path: Path) -> None:
    alone = rescaled_epoch.begin_alone(tmp_path)
    ranks = [
        subprocess.Popen([sys.executable, rescaled_epoch.__file__, str(tmp_path), str(rank)])
        for rank in range(WORLD)
    ]
    try:
        assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD)]
    grown = visits(alone, *(rank["resumed"] for rank in told))
    shrunk = visits(*(rank["begun"] for rank in told), rescaled_epoch.finish_alone(tmp_path))
    assert grown == {"once": 40, "twice or more": 0, "never": 24}
    assert shrunk == {"once": 52, "twice or more": 12, "never": 0}


def test_oakum_reads_each_sample_once(tmp_path: Path, states_of_threads: None) -> None:
    """Though the number of ranks grows and shrinks within the epoch."""
    from oakum.hugging_face import Trainer

    learnt: list[int] = []

    def script(rank: Rank) -> None:
        size = {"per_device_train_batch_size": PER_RANK, "gradient_accumulation_steps": 2}
        counting(Trainer, learnt)(Line(), arguments(tmp_path, **size), train_dataset=Numbered()).train()

    fields = {"name": "once", "script": "once.py", "global_batch": 2 * PER_RANK, "epochs": 1, "seed": 42}
    stages = [Stage(("a", "b"), 2), Stage(("b", "c", "d"), 2), Stage(("d",), 1), Stage(("d", "e"))]
    Plan(stages, TrainerSpec.model_validate(fields), script).run()
    assert visits(learnt) == {"once": NUM_SAMPLES, "twice or more": 0, "never": 0}
