"""A canary: the installed libraries have what the adapters rely on, and the adapters rely on nothing else.

Where one of these tests fails with a new version of a library, the message names the adapter, the name that has
changed and what the adapter does with it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oakum
from cells import each
from oakum import relied_on
from oakum.library_names import Name, Reliance
from oakum_worker.errors import SessionError

FOLDER = Path(oakum.__file__).parent
EXTRAS = {"transformers": "hugging-face", "accelerate": "hugging-face", "lightning": "lightning"}
RELIANCES = {
    "hugging_face": relied_on.HUGGING_FACE,
    "accelerate": relied_on.ACCELERATE,
    "lightning": relied_on.FABRIC,
    "lightning_trainer": relied_on.LIGHTNING_TRAINER,
}
"""Module of an adapter -> what it relies on."""
PARTS = {
    "hugging_face": ("hugging_face", "hugging_face_progress", "hugging_face_refusals"),
    "lightning_trainer": (
        "lightning_trainer",
        "lightning_strategy",
        "lightning_checkpoints",
        "lightning_refusals",
    ),
}
"""Module of an adapter that has several -> all of them."""
OWN = {"epochs", "keep", "end", "is_accumulating", "step_was_taken", "weigh"}
"""Public names that the adapters add to the libraries' classes."""


OF_EACH = pytest.mark.parametrize(
    "module",
    [pytest.param(name, marks=pytest.mark.needs(EXTRAS[one.library])) for name, one in RELIANCES.items()],
)


def hugging_face_trainer(folder: Path) -> Any:
    import transformers

    from tiny_language_model import Sentences, tiny_model

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", max_steps=1, disable_tqdm=True, save_strategy="no"
    )
    return transformers.Trainer(tiny_model(), arguments, train_dataset=Sentences())


def lightning_trainer(**options: Any) -> Any:
    import lightning.pytorch as pl

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(accelerator="cpu", devices=1, enable_checkpointing=False, max_steps=1, **quiet, **options)


def plain(module: str, folder: Path) -> Any:
    """What the library makes, without the adapter."""
    if module == "hugging_face":
        return hugging_face_trainer(folder)
    if module == "accelerate":
        import accelerate

        return accelerate.Accelerator(cpu=True)
    if module == "lightning":
        import lightning.fabric

        return lightning.fabric.Fabric(accelerator="cpu", devices=1)
    return lightning_trainer()


@OF_EACH
def test_the_installed_library_is_the_tested_version_and_has_what_the_adapter_relies_on(
    module: str, tmp_path: Path
) -> None:
    """Where a library is updated, `tested` of relied_on.py follows once these tests pass."""
    reliance = RELIANCES[module]
    reliance.check()
    reliance.check_object(plain(module, tmp_path))
    assert reliance.tested == metadata.version(reliance.library)


@pytest.mark.needs("hugging-face")
def test_hugging_faces_sums_of_losses_are_there_when_its_training_begins(tmp_path: Path) -> None:
    import transformers

    seen = []

    class Look(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **named: Any) -> None:
            relied_on.HUGGING_FACE.check_training(trainer)
            seen.append(float(trainer._tr_loss))

    trainer = hugging_face_trainer(tmp_path)
    trainer.add_callback(Look())
    trainer.train()
    assert seen == [0.0]
    assert trainer.control.state()["args"]["should_training_stop"] is True


@pytest.mark.needs("hugging-face")
def test_hugging_faces_trackers_know_by_this_name_whether_they_are_set_up() -> None:
    """Without the trackers' own libraries none can be made."""
    from transformers.integrations import integration_utils

    for tracker in ("WandbCallback", "MLflowCallback", "CometCallback"):
        source = inspect.getsource(getattr(integration_utils, tracker).on_log)
        assert "if not self._initialized:\n            self.setup(" in source


@pytest.mark.needs("hugging-face")
def test_accelerates_optimizer_says_by_this_name_that_no_step_was_taken() -> None:
    import accelerate
    import torch

    optimizer = accelerate.Accelerator(cpu=True).prepare(torch.optim.SGD([torch.ones(1, requires_grad=True)]))
    relied_on.ACCELERATE.check_training(optimizer)
    assert not optimizer.step_was_skipped
    optimizer._is_overflow = True
    assert optimizer.step_was_skipped


@pytest.mark.needs("lightning")
def test_lightnings_fetcher_and_counters_are_there_when_its_training_begins() -> None:
    import torch
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.demos.boring_classes import BoringModel

    seen = []

    class Look(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            relied_on.LIGHTNING_TRAINER.check_training(trainer)
            seen.append(
                (trainer.fit_loop._data_fetcher.fetched, trainer.fit_loop.epoch_loop._batches_that_stepped)
            )

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            progress = trainer.fit_loop.epoch_loop.batch_progress.current
            seen.append((progress.completed, trainer.fit_loop.epoch_loop._batches_that_stepped))

    loader = torch.utils.data.DataLoader(torch.ones(4, 32))
    lightning_trainer(callbacks=[Look()], limit_val_batches=0).fit(BoringModel(), loader)
    assert seen == [(0, 0), (1, 1)]


@pytest.mark.needs("lightning")
def test_lightnings_results_give_callbacks_their_metrics_by_this_key() -> None:
    from oakum.library_names import private

    metrics = private(relied_on.RESULT_COLLECTION)(training=True).metrics(on_step=True)
    assert metrics["callback"] == {}


@pytest.mark.needs("lightning")
def test_lightnings_metrics_to_monitor_are_those_that_the_adapter_fills() -> None:
    trainer = lightning_trainer()
    trainer._logger_connector._callback_metrics.update({"loss": 3.0})
    assert trainer.callback_metrics == {"loss": 3.0}


@pytest.mark.needs("lightning")
def test_lightnings_model_checkpoint_remembers_by_these_names() -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    for name in relied_on.LIGHTNING_TRAINER.of_others:
        assert hasattr(ModelCheckpoint(), name.path.rpartition(".")[2]), name.path


@OF_EACH
def test_the_adapter_uses_no_private_name_that_is_not_listed(module: str) -> None:
    """A private name that the module neither defines nor sets is a library's."""
    tree = ast.parse(_source(module))
    own = set(_own_names(tree)) | _assigned_names(tree)
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node.attr)}
    used |= {text for text in _texts(tree) if re.fullmatch(r"_[a-z]\w+", text)}
    assert used - own - _listed(module) == set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("oakum"):
            assert not any(_is_private(alias.name) for alias in node.names), ast.unparse(node)


@OF_EACH
def test_what_the_adapter_defines_in_a_librarys_class_is_listed_or_new_to_the_library(
    module: str, tmp_path: Path
) -> None:
    """A name of ours that the library begins to use would change what the library does."""
    tree = ast.parse(_source(module))
    library_object = plain(module, tmp_path)
    name = type(library_object).__name__
    (own_class,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for own in set(_own_names(own_class)) - _listed(module):
        if _is_private(own):
            assert not hasattr(library_object, own), f"{own} of oakum.{module} is now a name of the library"
        elif not own.startswith("__"):
            assert hasattr(library_object, own) or own in OWN, f"{own}: the library has no such name any more"


def test_each_override_has_its_librarys_name_in_the_list() -> None:
    """A method that the library does not call any more would do nothing."""
    for module, reliance in RELIANCES.items():
        for name in reliance.names:
            if name.use.startswith("overridden"):
                assert f"def {name.path.rpartition('.')[2]}(" in _source(module), (
                    f"oakum.{module} overrides no {name.path}"
                )


CHANGED = SimpleNamespace(kept=lambda batch, index=0: None, moved=lambda batch, strict: None)


def reliance_on(*names: Name) -> Reliance:
    return Reliance("oakum.pets.Trainer", "pytest", "1.2.3", names=(), of_objects=names)


@each(
    ("name", "complaint"),
    [
        (Name("gone", "called: feeds the cat"), r"there is no gone \(called: feeds the cat\)"),
        (Name("kept.deeper", "set"), r"there is no kept\.deeper"),
        (Name("moved", "called", "batch"), r"moved takes \(batch, strict\) in place of \(batch\)"),
        (Name("moved", "called", "batch ..."), r"moved takes \(batch, strict\) in place of \(batch, \.\.\.\)"),
        (Name("kept", "called", "index batch"), r"kept takes \(batch, index\) in place of \(index, batch\)"),
    ],
)
def test_a_changed_name_is_refused_with_both_versions_and_its_use(name: Name, complaint: str) -> None:
    with pytest.raises(SessionError, match=complaint) as caught:
        reliance_on(name).check_object(CHANGED)
    assert f"does not work with pytest {metadata.version('pytest')}" in str(caught.value)
    assert "pip install 'pytest==1.2.3'" in str(caught.value)


def test_names_that_are_as_expected_are_not_refused() -> None:
    exact, open_end = Name("kept", "called", "batch index"), Name("kept", "called", "batch ...")
    reliance_on(exact, open_end, Name("moved", "set")).check_object(CHANGED)


def test_a_missing_module_is_refused_as_a_missing_name_is() -> None:
    reliance = replace(reliance_on(), names=(Name("pytest.nowhere:Class.method", "overridden"),))
    with pytest.raises(SessionError, match=r"there is no pytest\.nowhere:Class\.method \(overridden\)"):
        reliance.check()


@pytest.mark.needs("lightning")
def test_an_adapter_whose_library_lacks_a_name_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so at once, in place of an error from within the first step."""
    import lightning.pytorch.loops.fetchers

    module = importlib.import_module("oakum.lightning_trainer")
    monkeypatch.delattr(lightning.pytorch.loops.fetchers, "_DataLoaderIterDataFetcher")
    source = compile(Path(str(module.__file__)).read_text(encoding="utf-8"), str(module.__file__), "exec")
    with pytest.raises(SessionError, match=r"oakum\.lightning\.Trainer .*_DataLoaderIterDataFetcher \(refused"):
        exec(source, {"__name__": "another"})


@pytest.mark.needs("lightning")
def test_a_trainer_whose_librarys_objects_lack_a_name_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from oakum.lightning import Trainer

    renamed = replace(
        relied_on.LIGHTNING_TRAINER, of_objects=(Name("fit_loop.epoch_loop._batches_that_went", "set"),)
    )
    monkeypatch.setattr("oakum.lightning_trainer.LIGHTNING_TRAINER", renamed)
    with pytest.raises(SessionError, match=r"there is no fit_loop\.epoch_loop\._batches_that_went \(set\)"):
        Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def _source(module: str) -> str:
    """The adapter's code; what concerns a module alone, such as `from __future__`, stands in it several times."""
    files = (FOLDER / f"{part}.py" for part in PARTS.get(module, (module,)))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def _listed(module: str) -> set[str]:
    """Each part of each path that the module relies on."""
    one = RELIANCES[module]
    names = (*one.names, *one.of_objects, *one.of_training, *one.of_others)
    return {part for name in names for part in re.split("[.:]", name.path)}


def _own_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            yield from _declared(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _declared(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for line in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id


def _assigned_names(tree: ast.AST) -> set[str]:
    """Names that the module assigns, as to private classes that it has checked."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
