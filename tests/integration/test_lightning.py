"""Lightning's `Fabric` and `Trainer`: what they promise beyond what `test_adapters` shows of every library."""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Sampler

from adapters import (
    ACCUMULATED,
    BATCH,
    LIGHTNING,
    PER_RANK,
    SEED,
    STEPS_PER_EPOCH,
    Told,
    Training,
    regression,
    spec,
    weights_of,
)
from cells import each
from oakum_worker.errors import SessionError
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from session_ranks import Plan, Stage
from training_ranks import NUM_SAMPLES, Points

pytestmark = pytest.mark.needs("lightning")
QUIET = LIGHTNING.options


def test_a_step_in_the_middle_of_a_share_is_refused() -> None:
    from oakum.lightning import Fabric

    fabric = Fabric(accelerator="cpu", accumulated=2, epochs=1)
    net = nn.Linear(5, 2).double()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader, whole = fabric.setup_dataloaders(
        DataLoader(Points(), batch_size=4, shuffle=True), DataLoader(Points(), batch_size=4)
    )
    assert sum(len(inputs) for inputs, _ in whole) == len(Points())
    epochs = fabric.epochs()
    next(epochs)
    inputs, targets = next(iter(loader))
    assert len(inputs) == 4
    fabric.backward(mse_loss(model(inputs), targets))
    with pytest.raises(SessionError, match="before the last part"):
        optimizer.step()
    epochs.close()  # type: ignore[attr-defined]  # as the interpreter does


def test_alone_it_trains_as_the_library_does_in_the_same_order(tmp_path: Path) -> None:
    """Counting, schedules, clipping and accumulation are the library's, also of the batches that are left at an
    epoch's end."""
    import lightning

    class Order(Sampler[int]):
        epoch = -1

        def __len__(self) -> int:
            return NUM_SAMPLES

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            sampler = ElasticSampler(NUM_SAMPLES, NUM_SAMPLES, SEED)
            return iter(sampler.indices(Cursor(epoch=self.epoch), range(NUM_SAMPLES)))

    expected = regression()
    plain = lightning.Trainer(accumulate_grad_batches=ACCUMULATED, **QUIET)
    plain.fit(expected, DataLoader(Points(), batch_size=PER_RANK, sampler=Order()))
    found = Told()
    weights = LIGHTNING.script(Training(), found, tmp_path)(None)
    assert (plain.current_epoch, plain.global_step) == (6, found.ends[0])
    for one, other in zip(weights, weights_of(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_number_of_steps_ends_training_and_the_library_writes_no_checkpoints_on_ranks(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also in the middle of an epoch."""
    LIGHTNING.prepare(request)
    steps = STEPS_PER_EPOCH + 1
    options = {"max_steps": steps, "max_epochs": None, "enable_checkpointing": True}
    told = Told()
    script = LIGHTNING.script(Training(), told, tmp_path, default_root_dir=str(tmp_path), **options)
    Plan([Stage(("a", "b"), 4), Stage(("b", "c"))], spec(epochs=2), script).run()
    assert sorted(told.losses) == list(range(1, steps + 1))
    assert not list(tmp_path.rglob("*.ckpt"))
    script(None)
    assert list(tmp_path.rglob("*.ckpt"))


def _with_checkpoints(folder: Path, rank: Any = None, **changes: Any) -> Any:
    """Trains three epochs with a `ModelCheckpoint` of two files in a folder of this rank's own; returns it and the
    module."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from oakum.lightning import Trainer

    checkpoint = ModelCheckpoint(**({"monitor": "val_loss", "save_top_k": 2, "filename": "best"} | changes))
    options = {"enable_checkpointing": True, "max_epochs": 4, "accumulate_grad_batches": ACCUMULATED}
    own = folder / ("alone" if rank is None else rank.name)
    module = regression(rank, lr=0.1)
    trainer = Trainer(**(QUIET | options), seed=SEED, callbacks=checkpoint, default_root_dir=own)
    trainer.fit(module, DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
    return checkpoint, module


@each(("most", "num_files"), [(2, 2), (-1, 4)])
def test_a_model_checkpoint_keeps_the_files_on_ranks_that_it_keeps_alone(
    tmp_path: Path, most: int, num_files: int
) -> None:
    """Also where the first rank alone loses an epoch's last step, after which it has to write, and where it is
    killed."""

    folder = tmp_path / str(most)

    def script(rank: Any = None) -> Any:
        checkpoint, module = _with_checkpoints(folder, rank, save_last=True, save_top_k=most)
        best = type(module).load_from_checkpoint(checkpoint.best_model_path)
        last = type(module).load_from_checkpoint(checkpoint.last_model_path)
        scores = {Path(path).name: score.item() for path, score in checkpoint.best_k_models.items()}
        return scores, Path(checkpoint.best_model_path), weights_of(best, last)

    scores, path, weights = script()
    last = STEPS_PER_EPOCH - 1
    stages = [
        Stage(("a", "b"), last, loser="a"),
        Stage(("a", "b"), STEPS_PER_EPOCH + 2),
        Stage(("b", "c"), 2, victim="b"),
        Stage(("c", "d")),
    ]
    results = Plan(stages, spec(epochs=4), script).run()
    assert len(scores) == num_files
    for name in ("c", "d"):
        found, its_path, its_weights = results[name]
        assert found == pytest.approx(scores, rel=1e-5)
        assert its_path == folder / "a" / "checkpoints" / path.name
        for one, other in zip(its_weights, weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    files = [sorted(one.name for one in where.iterdir()) for where in (path.parent, its_path.parent)]
    assert files[0] == files[1]
    assert len(files[0]) == num_files + 1
    assert len(list(folder.rglob("*.ckpt*"))) == 2 * len(files[0])


def test_a_checkpoint_that_another_rank_does_not_see_is_told_after_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum.lightning_checkpoints.PATIENCE_S", 0.1)

    def script(rank: Any) -> None:
        _with_checkpoints(tmp_path, rank, dirpath=tmp_path / "hidden")

    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **_: path.suffix != ".ckpt" and exists(path))
    told: list[str] = []
    # Ranks that are threads put each other's filters of warnings back.
    monkeypatch.setattr(warnings, "warn", lambda text, *_, **__: told.append(str(text)))
    assert Plan([Stage(("a", "b"))], spec(epochs=4), script).errors() == {"a": None, "b": None}
    [text] = [one for one in told if "ckpt" in one]
    assert re.search(r"best.*ckpt, and it is not there .* a folder that all nodes share", text)


def test_what_is_logged_while_training_cannot_be_monitored() -> None:
    """It is the number of one rank's share, by which ranks would decide differently."""
    from lightning.pytorch.callbacks import EarlyStopping

    from oakum.lightning import Trainer

    trainer = Trainer(**QUIET, callbacks=EarlyStopping("train_loss"))
    with pytest.raises(RuntimeError, match="train_loss"):
        trainer.fit(regression(), DataLoader(Points(), batch_size=BATCH, shuffle=True))


@each(
    ("options", "message"),
    [
        ({"strategy": "ddp"}, "strategy='ddp' cannot be kept"),
        ({"devices": 4}, "devices=4 cannot be kept"),
        ({"num_nodes": 2}, "num_nodes=2 cannot be kept"),
        ({"precision": "16-mixed"}, "use 'bf16-mixed'"),
        ({"precision": "16-true"}, "use 'bf16-true'"),
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


def test_callbacks_and_options_of_fabric_that_cannot_be_kept_are_refused() -> None:
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    from oakum.lightning import Fabric, Trainer

    with pytest.raises(SessionError, match=r"StochasticWeightAveraging cannot be kept .* `ema`"):
        Trainer(**QUIET, callbacks=[StochasticWeightAveraging(0.1)])
    with pytest.raises(SessionError, match="DDPStrategy: a rank has one device"):
        Fabric(accelerator="cpu", strategy="ddp", devices=2)
    with pytest.raises(SessionError, match="use 'bf16-mixed'"):
        Fabric(accelerator="cpu", precision="16-mixed")


def _by_the_clock() -> None:
    from datetime import timedelta

    from lightning.pytorch.callbacks import ModelCheckpoint

    from oakum.lightning import Trainer

    callback = ModelCheckpoint(train_time_interval=timedelta(minutes=1))
    Trainer(**(QUIET | {"enable_checkpointing": True}), callbacks=callback)


def test_modules_and_loaders_that_cannot_be_kept_are_refused() -> None:
    from oakum.lightning import Trainer

    def fit(module: Any = None, loader: Any = None, **named: Any) -> None:
        shuffled = DataLoader(Points(), batch_size=BATCH, shuffle=True)
        Trainer(**QUIET).fit(module or regression(), loader or shuffled, **named)

    by_hand = regression()
    by_hand.automatic_optimization = False
    with pytest.raises(SessionError, match="automatic_optimization=False"):
        fit(by_hand)
    forgetful = regression()
    forgetful.optimizer_zero_grad = lambda epoch, index, optimizer: optimizer.zero_grad()
    with pytest.raises(SessionError, match=r"optimizer_zero_grad\(\) of its own"):
        fit(forgetful)
    with pytest.raises(SessionError, match="clocks of their own; give every_n_train_steps"):
        _by_the_clock()
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


def test_hooks_that_skip_a_batch_or_compute_it_themselves_are_refused() -> None:
    from oakum.lightning import Trainer

    def compute(epoch: int, index: int, optimizer: Any, closure: Any) -> None:
        closure()
        optimizer.step()

    for hook, own, message in (
        ("on_train_batch_start", lambda *_: -1, "on_train_batch_start returned -1"),
        ("training_step", lambda *_: None, "training_step returned None"),
        ("optimizer_step", compute, r"call optimizer\.step\(closure=optimizer_closure\)"),
    ):
        module = regression()
        setattr(module, hook, own)
        with pytest.raises(SessionError, match=message):
            Trainer(**QUIET).fit(module, DataLoader(Points(), batch_size=BATCH, shuffle=True))


def test_the_librarys_environment_stays_with_plugins_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is one process, whatever the scheduler's variables say."""
    from lightning.fabric.plugins import Precision
    from lightning.fabric.plugins.environments import LightningEnvironment

    from oakum.lightning import Fabric

    for name, value in (("SLURM_NTASKS", "4"), ("SLURM_PROCID", "3"), ("SLURM_JOB_NAME", "train")):
        monkeypatch.setenv(name, value)
    for plugins in (Precision(), [Precision()], None):
        fabric = Fabric(accelerator="cpu", plugins=plugins)
        assert isinstance(fabric._connector.cluster_environment, LightningEnvironment)


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
