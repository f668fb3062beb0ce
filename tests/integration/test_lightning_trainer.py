"""Lightning's `Trainer` on ranks that come, leave and are killed: it ends as it does alone."""

from __future__ import annotations

import contextlib
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Sampler

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import HOST, RankHost
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import turns_alone
from regression_loops import ACCUMULATED, BATCH, EPOCHS, PER_RANK, STEPS_PER_EPOCH, network, spec
from session_ranks import Gone, Plan, Rank, Stage, random_stages
from training_ranks import NUM_SAMPLES, Points

pytestmark = pytest.mark.needs("lightning")
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "gradient_clip_val": 0.5,
    "max_epochs": EPOCHS,
}


@pytest.fixture(autouse=True)
def one_loader_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one rank at a time ask for its data loader. Lightning replaces methods of torch's classes meanwhile, and
    ranks, which are threads here and processes elsewhere, would put them back under each other."""
    from lightning.pytorch.trainer.connectors import data_connector

    replace, lock = data_connector._replace_dunder_methods, threading.RLock()

    @contextlib.contextmanager
    def replace_alone(*given: Any) -> Iterator[None]:
        with lock, replace(*given):
            yield

    monkeypatch.setattr(data_connector, "_replace_dunder_methods", replace_alone)


class Record:
    """What the ranks of a trainer told."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.validations: dict[int, float] = {}
        self.ends: list[tuple[int, int]] = []


def regression(rank: Rank | None = None, patience: int | None = None, lr: float = 0.01) -> Any:
    """A module as the library's users write it, with dropout, validation, and one scheduler for each epoch or
    by the metric of validation."""
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.seen: dict[int, float] = {}

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.network(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if rank is not None:
                rank.may_die()
            loss = mse_loss(self(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", mse_loss(self(batch[0]), batch[1]))

        def val_dataloader(self) -> Any:
            return DataLoader(Points(), batch_size=16)

        def configure_callbacks(self) -> Any:
            return [] if patience is None else [EarlyStopping("val_loss", patience=patience)]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=lr)
            every_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
            every_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.1)
            return [optimizer], [
                {"scheduler": every_step, "interval": "step"},
                {"scheduler": every_epoch, "interval": "epoch"},
                {"scheduler": plateau, "interval": "epoch", "monitor": "val_loss"},
            ]

    return Regression()


def fitting(record: Record, patience: int | None = None, lr: float = 0.01, **options: Any) -> Any:
    """A script that fits the regression; returns its weights."""
    from lightning.pytorch.callbacks import Callback

    from oakum.lightning import Trainer

    class Recorder(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            assert trainer.global_step == trainer._loop.open.steps
            assert trainer.current_epoch == (trainer.global_step - 1) // STEPS_PER_EPOCH
            record.losses[trainer.global_step] = trainer._loop.open.loss
            record.rates[trainer.global_step] = trainer.optimizers[0].param_groups[0]["lr"]

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            record.validations[trainer.global_step] = trainer.callback_metrics["val_loss"].item()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            record.ends.append((trainer.current_epoch, trainer.global_step))

    def script(rank: Rank | None) -> Any:
        module = regression(rank, patience, lr)
        fields = {"accumulate_grad_batches": ACCUMULATED, "callbacks": Recorder(), "seed": 3}
        trainer = Trainer(**(QUIET | fields | options))
        trainer.fit(module, DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
        return [p.detach().clone() for p in module.parameters()]

    return script


def assert_alike(found: Record, expected: Record) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    assert found.rates == pytest.approx(expected.rates, rel=1e-12)
    assert found.validations == pytest.approx(expected.validations, rel=1e-5)  # the library logs in float32
    assert set(found.ends) == set(expected.ends)


def test_the_trainer_ends_alike_through_random_disturbances() -> None:
    expected, found = Record(), Record()
    weights = fitting(expected)(None)
    stages = random_stages(20, seed=5)
    results = Plan(stages, spec(), fitting(found)).run()
    assert sum(stage.victim is not None for stage in stages) >= 6
    assert len(expected.losses) == EPOCHS * STEPS_PER_EPOCH
    assert len(expected.validations) == EPOCHS
    assert_alike(found, expected)
    for name in stages[-1].members:
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="inner", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH - 1, id="last", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH, id="first"),
    ],
)
def test_a_step_that_one_rank_alone_loses_is_not_taken_twice(step: int) -> None:
    """The others have taken it, at the end of an epoch with what follows there, and the rank goes on with them."""
    expected, found = Record(), Record()
    weights = fitting(expected, max_epochs=3)(None)
    stages = [Stage(("a", "b", "c"), step, loser="b"), Stage(("c", "b"), 4, loser="c"), Stage(("b", "c"))]
    results = Plan(stages, spec(epochs=3), fitting(found, max_epochs=3)).run()
    assert_alike(found, expected)
    for name in ("b", "c"):
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_alone_it_trains_as_the_library_does_in_the_same_order() -> None:
    """Counting, schedules, clipping and accumulation are the library's."""
    import lightning

    class Order(Sampler[int]):
        epoch = -1

        def __len__(self) -> int:
            return NUM_SAMPLES

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            sampler = ElasticSampler(NUM_SAMPLES, NUM_SAMPLES, 3)
            return iter(sampler.indices(Cursor(epoch=self.epoch), range(NUM_SAMPLES)))

    expected = regression()
    plain = lightning.Trainer(**QUIET)
    plain.fit(expected, DataLoader(Points(), batch_size=BATCH, sampler=Order()))
    found = Record()
    weights = fitting(found)(None)
    assert found.ends == [(plain.current_epoch, plain.global_step)]
    for one, other in zip(weights, expected.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)


def test_early_stopping_ends_training_on_all_ranks_after_the_step_where_it_does_alone() -> None:
    expected, found = Record(), Record()
    options: dict[str, Any] = {"patience": 1, "lr": 0.3, "val_check_interval": 0.5}
    fitting(expected, **options)(None)
    assert max(expected.losses) < EPOCHS * STEPS_PER_EPOCH
    stages = [Stage(("a", "b"), 2), Stage(("b", "c"), 2, "b"), Stage(("c", "d"), 1), Stage(("d", "e"))]
    Plan(stages, spec(), fitting(found, **options)).run()
    assert_alike(found, expected)


class Saving(RankHost):
    """A rank that makes a checkpoint between the two validations after which training stops, and is gone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(spec(), turns_alone, lambda: None)
        self.checkpoints = DurableCheckpoints(folder, keep=1)

    def turns(self, loop: TrainingLoop) -> Any:
        turns = super().turns(loop)
        order = next(turns)
        while loop.step_count < 28:
            order = turns.send((yield order))
        self.checkpoints.save(loop.state_dict(), loop.step_count)
        return False

    def leave(self) -> Any:
        raise Gone

    def load(self, loop: TrainingLoop) -> None:
        newest = self.checkpoints.newest()
        assert newest is not None
        state = loop.state_dict()
        self.checkpoints.load(newest, state)
        loop.load_state_dict(state)


def test_training_goes_on_from_a_checkpoint_with_what_callbacks_remember(tmp_path: Path) -> None:
    expected, found = Record(), Record()
    options: dict[str, Any] = {"patience": 2, "lr": 0.5, "val_check_interval": 0.5}
    fitting(expected, **options)(None)
    assert max(expected.losses) == 30 < EPOCHS * STEPS_PER_EPOCH
    saving = Saving(tmp_path)
    token = HOST.set(saving)
    with pytest.raises(Gone):
        fitting(found, **options)(None)
    HOST.reset(token)
    stages = [Stage(("r0", "r1", "r2"), 1, victim="r1"), Stage(("r0", "r2"))]
    Plan(stages, spec(), fitting(found, **options), saving.load).run()
    assert_alike(found, expected)


def test_a_number_of_steps_ends_training_in_the_middle_of_an_epoch() -> None:
    found = Record()
    options = {"max_steps": 2 * STEPS_PER_EPOCH + 1, "max_epochs": None}
    Plan([Stage(("a", "b"), 4), Stage(("b", "c"))], spec(epochs=3), fitting(found, **options)).run()
    assert sorted(found.losses) == list(range(1, 2 * STEPS_PER_EPOCH + 2))


def test_checkpoints_of_the_library_are_written_alone_only(tmp_path: Path) -> None:
    options = {"enable_checkpointing": True, "default_root_dir": str(tmp_path), "max_epochs": 1}
    Plan([Stage(("a", "b"), 4), Stage(("b", "c"))], spec(epochs=1), fitting(Record(), **options)).run()
    assert not list(tmp_path.rglob("*.ckpt"))
    fitting(Record(), **options)(None)
    assert list(tmp_path.rglob("*.ckpt"))


def test_what_is_logged_while_training_cannot_be_monitored() -> None:
    """It is the number of one rank's share, by which ranks would decide differently."""
    from lightning.pytorch.callbacks import EarlyStopping

    from oakum.lightning import Trainer

    trainer = Trainer(**QUIET, callbacks=EarlyStopping("train_loss"))
    with pytest.raises(RuntimeError, match="train_loss"):
        trainer.fit(regression(), DataLoader(Points(), batch_size=BATCH, shuffle=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "ddp"}, "strategy='ddp' cannot be kept"),
        ({"devices": 4}, "devices=4 cannot be kept"),
        ({"num_nodes": 2}, "num_nodes=2 cannot be kept"),
        ({"precision": "16-mixed"}, "use 'bf16-mixed'"),
        ({"max_time": "00:01:00:00"}, "max_time='00:01:00:00' cannot be kept"),
        ({"limit_train_batches": 0.5}, "limit_train_batches=0.5 cannot be kept"),
        ({"overfit_batches": 2}, "overfit_batches=2 cannot be kept"),
        ({"fast_dev_run": True}, "use `oakum try`"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs=1 cannot be kept"),
        ({"accumulate_grad_batches": 2, "val_check_interval": 3}, "val_check_interval=3 cannot be kept"),
        ({"max_epochs": -1}, "give the number of epochs"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: Any, message: str) -> None:
    from oakum.lightning import Trainer

    with pytest.raises(SessionError, match=message):
        Trainer(**(QUIET | options))


def test_callbacks_that_cannot_be_kept_are_refused() -> None:
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    from oakum.lightning import Trainer

    with pytest.raises(SessionError, match=r"StochasticWeightAveraging cannot be kept .* `ema`"):
        Trainer(**QUIET, callbacks=[StochasticWeightAveraging(0.1)])


def test_modules_and_loaders_that_cannot_be_kept_are_refused() -> None:
    from oakum.lightning import Trainer

    def fit(module: Any = None, loader: Any = None, **named: Any) -> None:
        shuffled = DataLoader(Points(), batch_size=BATCH, shuffle=True)
        Trainer(**QUIET).fit(module or regression(), loader or shuffled, **named)

    by_hand = regression()
    by_hand.automatic_optimization = False
    with pytest.raises(SessionError, match="automatic_optimization=False"):
        fit(by_hand)
    aimless = regression()
    aimless.configure_optimizers = lambda: None
    with pytest.raises(SessionError, match="return an optimizer"):
        fit(aimless)
    with pytest.raises(SessionError, match="leave the argument out"):
        fit(ckpt_path="last")
    with pytest.raises(SessionError, match="shuffle=True"):
        fit(loader=DataLoader(Points(), batch_size=BATCH))
    with pytest.raises(SessionError, match="drop_last=True"):
        fit(loader=DataLoader(Points(), batch_size=BATCH, shuffle=True, drop_last=True))
    with pytest.raises(SessionError, match="a second data loader"):
        fit(loader=[DataLoader(Points(), batch_size=BATCH, shuffle=True)] * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch": 16}, f"batch_size={BATCH}, and the trainer's spec has global_batch: 16"),
        ({"epochs": 2}, f"epochs={EPOCHS}, and the trainer's spec has epochs: 2"),
        ({"batch_schedule": [[1, 18]]}, "batch_schedule"),
    ],
)
def test_a_spec_of_another_training_is_refused(changes: Any, message: str) -> None:
    token = HOST.set(RankHost(spec(**changes), turns_alone, lambda: None))
    try:
        with pytest.raises(SessionError, match=message):
            fitting(Record())(None)
    finally:
        HOST.reset(token)


def test_the_example_differs_from_the_plain_one_in_its_import() -> None:
    examples = Path(__file__).parents[2] / "examples"
    texts = [(examples / name).read_text(encoding="utf-8") for name in ("fitted.py", "fitted_plain.py")]
    ours, plain = (text.splitlines()[1:] for text in texts)
    assert set(ours) - set(plain) == {
        "from lightning import LightningModule",
        "from oakum.lightning import Trainer",
    }


def test_the_example_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of it."""
    import oakum.lightning
    from oakum.lightning import Trainer

    made: list[Any] = []

    def brief(**options: Any) -> Trainer:
        quiet = {name: QUIET[name] for name in ("accelerator", "enable_progress_bar", "enable_checkpointing")}
        made.append(Trainer(**(options | quiet | {"max_epochs": None, "max_steps": 4, "num_sanity_val_steps": 0})))
        return made[-1]

    examples = Path(__file__).parents[2] / "examples"
    pytest.importorskip("sklearn")
    monkeypatch.setattr(oakum.lightning, "Trainer", brief)
    monkeypatch.syspath_prepend(str(examples))
    runpy.run_path(str(examples / "fitted.py"), run_name="__main__")
    assert made[0].global_step == made[0]._loop.open.steps == 4
