"""Losses that are no means over samples: on ranks that come and go a script has those of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize
from torch.utils.data import DataLoader

import oakum
from adapters import ACCUMULATED, BATCH, PER_RANK, SEED, LightningTrainer, network, spec, weights_of
from cells import each
from oakum_worker.gathering import gather_batch, own_rows
from rank_processes import in_a_fresh_process
from session_ranks import Plan, Rank, Stage
from training_ranks import Points

EPOCHS = 3
STEPS = 4
"""Of a sequence; no divisor of the batch."""
STAGES = [Stage(("a", "b"), 3), Stage(("b",), 2), Stage(("c", "b", "d"))]

Script = Callable[[Rank | None], list[torch.Tensor]]


def ends_alike(script: Script, alone: Script | None = None, **fields: Any) -> None:
    """Train alone and on ranks, and compare the weights."""
    expected = (alone or script)(None)
    found = Plan(STAGES, spec(epochs=EPOCHS, **fields), script).run()
    for name in STAGES[-1].members:
        for one, other in zip(found[name], expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def weighted(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean by weights that differ from sample to sample, as those of classes do, and their sum."""
    weights = 1 + 7 * (targets[:, 0] > 0).double()
    losses = mse_loss(model(inputs), targets, reduction="none").mean(1)
    return (losses * weights).sum() / weights.sum(), weights.sum()


def own_loop(backward: Callable[[Any, Any, nn.Module], None], build: Callable[[], nn.Module] = network) -> Script:
    def script(rank: Rank | None) -> list[torch.Tensor]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        fields = {"batch_size": BATCH, "epochs": EPOCHS, "seed": SEED}
        with oakum.session(model, optimizer, Points(), **fields) as session:
            for batch in session:
                backward(session, batch, model)
                session.step()
        return [*weights_of(model), *(buffer.clone() for buffer in model.buffers())]

    return script


def test_a_batch_is_gathered_in_a_loop_of_ones_own() -> None:
    def among_all(session: Any, batch: Any, model: nn.Module) -> None:
        first, second = (normalize(model(one), dim=1) for one in (batch[0], batch[0].flip(1)))
        session.backward(cross_entropy(first @ gather_batch(second).T, own_rows(second)))

    ends_alike(own_loop(among_all))


def weights_with_dropout_from(begins: int, in_parts: bool) -> list[list[float]]:
    """The weights after training on sequences that are in front of the batch, with dropout after `begins` steps,
    in whole batches or in parts of as many samples as a sequence has steps."""

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.dropout = nn.Dropout(0.0)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            steps = torch.arange(1, STEPS + 1, dtype=inputs.dtype).view(-1, 1, 1)
            sequences = inputs * steps
            made: torch.Tensor = self.network(self.dropout(sequences) if self.dropout.p else sequences).mean(0)
            return made

    def whole(session: Any, batch: Any, model: nn.Module) -> None:
        model.dropout.p = 0.4 if session.steps >= begins else 0.0
        session.backward(mse_loss(model(batch[0]), batch[1]))

    def parts(session: Any, batch: Any, model: nn.Module) -> None:
        for first in range(0, session.num_samples, STEPS):
            part = [one[first : first + STEPS] for one in batch]
            with session.part(first, len(part[0])):
                whole(session, part, model)

    return [one.flatten().tolist() for one in own_loop(parts if in_parts else whole, Sequences)(None)]


@each("begins", [0, 2])
def test_sequences_of_as_many_steps_as_samples_are_computed_at_once_drop_the_same(begins: int) -> None:
    """With the sequence first, as `nn.Transformer` has it by default, sizes do not tell steps from samples.
    Dropout that begins after some steps is rehearsed then."""
    together, apart = (in_a_fresh_process(weights_with_dropout_from, begins, parts) for parts in (False, True))
    for one, other in zip(apart, together, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)


def test_synchronised_batch_norm_has_the_statistics_of_the_batch() -> None:
    def build() -> nn.Module:
        return nn.Sequential(network()[0], nn.BatchNorm1d(8), nn.Tanh(), network()[2]).double()  # type: ignore[index]

    def mean(session: Any, batch: Any, model: nn.Module) -> None:
        session.backward(mse_loss(model(batch[0]), batch[1]))

    with pytest.warns(UserWarning, match="BatchNorm"):  # alone nobody can say what it is to be on ranks
        ends_alike(own_loop(mean, build), parallel={"batch_norm": "synchronised"})


@pytest.mark.needs("hugging-face")
def test_an_accelerator_takes_what_a_loss_is_a_mean_over(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("states_of_threads")
    from oakum.accelerate import Accelerator

    def script(rank: Rank | None) -> list[torch.Tensor]:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, epochs=EPOCHS, seed=SEED)
        plain: nn.Module = network()
        own = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
        made: Any = accelerator.prepare(plain, own, DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
        model, optimizer, loader = made
        for _ in accelerator.epochs():
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    loss, weight = weighted(model, inputs, targets)
                    accelerator.backward(loss, weight=weight)
                    optimizer.step()
                    optimizer.zero_grad()
        return weights_of(plain)

    ends_alike(script)


@pytest.mark.needs("lightning")
def test_fabric_takes_what_a_loss_is_a_mean_over() -> None:
    from oakum.lightning import Fabric

    def script(rank: Rank | None) -> list[torch.Tensor]:
        fabric = Fabric(accelerator="cpu", accumulated=ACCUMULATED, epochs=EPOCHS, seed=SEED)
        plain: nn.Module = network()
        model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9))
        loader = fabric.setup_dataloaders(DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
        for _ in fabric.epochs():
            for inputs, targets in loader:
                loss, weight = weighted(model, inputs, targets)
                fabric.backward(loss, weight=weight)
                if not fabric.is_accumulating:
                    optimizer.step()
                    optimizer.zero_grad()
        return weights_of(plain)

    ends_alike(script)


@pytest.mark.needs("lightning")
def test_lightnings_trainer_takes_what_a_loss_is_a_mean_over(request: pytest.FixtureRequest) -> None:
    import lightning

    from oakum.lightning import Trainer

    LightningTrainer().prepare(request)

    class Weighted(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
            loss, weight = weighted(self.network, *batch)
            return {"loss": loss, "weight": weight}

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def script(rank: Rank | None) -> list[torch.Tensor]:
        module = Weighted()
        options = LightningTrainer.options | {"max_epochs": EPOCHS, "accumulate_grad_batches": ACCUMULATED}
        trainer = Trainer(seed=SEED, **options)
        trainer.fit(module, DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
        return weights_of(module)

    ends_alike(script)


@pytest.mark.needs("hugging-face")
def test_hugging_faces_trainer_is_told_what_a_loss_is_a_mean_over(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue("states_of_threads")
    from transformers import TrainingArguments

    from oakum.hugging_face import Trainer

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.network(inputs)}

    class WeightedTrainer(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
            loss, weight = weighted(model.network, inputs["inputs"], inputs["labels"])
            self.weigh(weight)
            return loss

    class Rows(Points):
        def __getitem__(self, index: int) -> Any:
            inputs, labels = super().__getitem__(index)
            return {"inputs": inputs, "labels": labels}

    def script(rank: Rank | None) -> list[torch.Tensor]:
        model = Regression()
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=PER_RANK,
            gradient_accumulation_steps=ACCUMULATED,
            num_train_epochs=EPOCHS,
            learning_rate=0.01,
            seed=SEED,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        WeightedTrainer(model, arguments, train_dataset=Rows()).train()
        return weights_of(model)

    ends_alike(script)
