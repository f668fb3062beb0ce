"""What the `Trainer` of transformers knows of its progress, as a part of the session's state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from oakum.relied_on import HUGGING_FACE
from oakum_worker.checkpoint.model_folder import FILES

if TYPE_CHECKING:
    from oakum.hugging_face import Trainer

_NOT_OF_THE_STATE = ("is_local_process_zero", "is_world_process_zero", "log_history", "stateful_callbacks")


class Progress:
    """The library's own state as a part of the session's: counters, log, sums of losses, stateful callbacks."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._history = (0, "[]")
        self._written: str | None = None
        self.loaded: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON texts, which cost nothing to copy at each step."""
        trainer, state = self._trainer, self._trainer.state
        if self._history[0] != len(state.log_history):
            self._history = len(state.log_history), json.dumps(state.log_history, default=float)
        counters = {f.name: getattr(state, f.name) for f in fields(state) if f.name not in _NOT_OF_THE_STATE}
        sums = {
            "_tr_loss": float(getattr(trainer, "_tr_loss", 0.0)),
            "_total_loss_scalar": getattr(trainer, "_total_loss_scalar", 0.0),
            "_globalstep_last_logged": getattr(trainer, "_globalstep_last_logged", 0),
            "_initial_global_step": getattr(trainer, "_initial_global_step", 0),
        }
        return {
            FILES: self._files(),
            "counters": json.dumps(counters, default=float),
            "history": self._history[1],
            "callbacks": json.dumps([callback.state()["attributes"] for callback in self._callbacks()]),
            "control": json.dumps(trainer.control.state()["args"]),
            "sums": json.dumps(sums),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over a state of `state_dict`."""
        trainer = self._trainer
        _set(trainer.state, json.loads(state["counters"]))
        trainer.state.log_history = json.loads(state["history"])
        self._history = len(trainer.state.log_history), state["history"]
        for callback, attributes in zip(self._callbacks(), json.loads(state["callbacks"]), strict=True):
            _set(callback, attributes)
        _set(trainer.control, json.loads(state["control"]))
        self.loaded = json.loads(state["sums"])
        self.restore_sums()

    def restore_sums(self) -> None:
        """Give the library back its sums of losses, which it sets to 0 when it begins its loop."""
        if self.loaded is None:
            return
        _set(self._trainer, self.loaded)
        self._trainer._tr_loss = torch.tensor(self.loaded["_tr_loss"], device=self._trainer.args.device)

    def _files(self) -> str:
        """The files beside the weights of which `from_pretrained` makes the model."""
        if self._written is None:
            model = self._trainer.model
            files = {}
            if (config := getattr(model, "config", None)) is not None:
                own = json.loads(config.to_json_string()) | {"architectures": [type(model).__name__]}
                own["dtype"] = str(model.dtype).removeprefix("torch.")
                files["config.json"] = json.dumps(own, indent=2)
            if (generation := getattr(model, "generation_config", None)) is not None:
                files["generation_config.json"] = generation.to_json_string()
            self._written = json.dumps(files)
        return self._written

    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]


def _set(holder: object, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(holder, name, value)


class Follower(TrainerCallback):
    """A callback of the library's Trainer. On a rank that has joined, the library counts the epoch and the sums of
    losses from the beginning of its own loop: this corrects both before other callbacks see them."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the sums of losses of a rank that has joined."""
        HUGGING_FACE.check_training(self._trainer)
        self._trainer._progress.restore_sums()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell how far the epoch is, with the steps that were taken before this rank joined."""
        trainer = self._trainer
        epoch, steps = divmod(trainer._open.steps - 1, trainer._num_steps_per_epoch)
        # The library counts the batches that are accumulated, of which an epoch's last step may have fewer.
        batches = -(-len(trainer._loader.dataset) // trainer._micro_batch)
        accumulated = trainer.args.train_batch_size // trainer._micro_batch
        state.epoch = epoch + min((steps + 1) * accumulated, batches) / batches
