"""A cube inside each stage of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from oakum_worker.parallel.pipeline.gradients import StageGradients
from oakum_worker.parallel.pipeline.links import PeerLinks, pairs_of
from oakum_worker.parallel.pipeline.scheduled import ScheduledEngine
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.subgroups import NamedSubgroups, Subgroups
from oakum_worker.parallel.tensor.chains import convert_chain
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.tensor.wires import Wires
from pipeline_ranks import CPU, Training, build_transformer, in_threads, sentences, train_once_alone
from tensor_ranks import together
from turns import in_turns

CUBE = Grid("3d", 2)
TRAINING = Training(partial(build_transformer, 3), sizes=(4, 4), num_steps=20)
CUTS = (range(3), range(3, 5))
"""An embedding and two blocks, and a block and the head that is tied to the embedding."""


@pytest.mark.parametrize("recompute", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_two_stage_pipeline_of_cubes_gets_the_weights_of_one_process(recompute: bool) -> None:
    """Twenty steps in memory, and three, which compute activations again, over gloo."""
    training = TRAINING if not recompute else replace(TRAINING, num_steps=3)
    chain: Any = training.build()
    plan = convert_chain(chain, chain.layers, CUBE, sentences(4), 4)
    alone = train_once_alone(training)
    run: Any = in_threads if recompute else in_turns
    found = run(16, partial(train, plan, chain, training, recompute))
    for name, whole in alone.weights.items():
        stage = 0 if int(name.split(".")[0]) in CUTS[0] else 1
        known = name if name in plan.conversion.placements else "0.weight"  # tied
        blocks = [found[8 * stage + place][name] for place in range(8)]
        assert torch.allclose(together(plan.conversion, known, blocks), whole, rtol=0, atol=1e-9), name


def train(
    plan: Any, chain: Any, training: Training, recompute: bool, rank: int, groups: Subgroups
) -> dict[str, torch.Tensor]:
    """Train as the rank at the place `rank % 8` of the cube of stage `rank // 8`."""
    stage, place = divmod(rank, 8)
    wires = Wires.form(CUBE, range(8 * stage, 8 * stage + 8), rank, groups)
    layers: Any = plan.conversion.local(chain.layers, place, chain.layers.state_dict())
    blocks = plan.chain(chain, layers, wires)
    schedule = build("1f1b", num_workers=2, num_micro_batches=2)
    own = NamedSubgroups(groups, f"place-{place}")
    gradients = StageGradients(blocks, CUTS, [[place], [place + 8]], rank, own)
    links = PeerLinks(own, [place, place + 8], stage, pairs_of(schedule), CPU)
    engine = ScheduledEngine(schedule, stage, blocks, CUTS, links, gradients.sync, recompute=recompute)
    optimizer = torch.optim.Adam(gradients.parameters, lr=training.lr)
    for share in training.shares(blocks, 0, 1):
        gradients.begin()
        engine.run(share)
        gradients.finish()
        optimizer.step()
    return {
        f"{number}.{name}": p.detach() for number in CUTS[stage] for name, p in layers[number].named_parameters()
    }
