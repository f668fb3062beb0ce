"""What the adapters rely on in other libraries, beyond what these document; where a new version of one breaks an
adapter, this is the list to go through.

`tests/integration/test_relied_on.py` checks each name against the installed libraries, and that the adapters use
no other private name.
"""

from __future__ import annotations

from oakum.library_names import Name, Reliance

__all__ = ["ACCELERATE", "FABRIC", "HUGGING_FACE", "LIGHTNING_TRAINER"]

_TRAINER = "transformers:Trainer."
HUGGING_FACE = Reliance(
    adapter="oakum.hugging_face.Trainer",
    library="transformers",
    tested="5.23.0",
    names=(
        Name(
            _TRAINER + "_init_training_state",
            "overridden: begins the session, before the library asks in which epoch to begin",
            "max_steps num_update_steps_per_epoch num_train_epochs resume_from_checkpoint trial",
        ),
        Name(
            _TRAINER + "_prepare_for_training",
            "overridden: prepares optimizer and scheduler earlier, in _init_training_state",
            "max_steps train_dataloader resume_from_checkpoint",
        ),
        Name(
            _TRAINER + "_run_epoch",
            "overridden: follows the other ranks to a later step, or to the end of training",
            "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval "
            "start_time resume_from_checkpoint epochs_trained steps_trained_in_current_epoch",
        ),
        Name(_TRAINER + "_finalize_training", "overridden: leaves the session"),
        Name(
            _TRAINER + "get_batch_samples",
            "overridden: hands out the session's shares",
            "epoch_iterator num_batches device",
        ),
        Name(
            _TRAINER + "training_step",
            "overridden: computes a share in parts and sums the gradients",
            "model inputs num_items_in_batch",
        ),
        Name(_TRAINER + "_get_train_sampler", "refused: Oakum deals the samples"),
        Name(_TRAINER + "_get_dataloader", "refused: Oakum deals the samples"),
        Name(_TRAINER + "create_optimizer", "overridden: the session takes the step", "model"),
        Name(_TRAINER + "get_train_dataloader", "overridden: the session reads the samples", ""),
        Name(_TRAINER + "hyperparameter_search", "overridden: each trial would be a second session"),
        Name(_TRAINER + "loss_is_scaled_for_ga", "read: whether a loss is a mean over samples"),
        Name(_TRAINER + "floating_point_ops", "overridden: counts for the global batch", "inputs"),
        Name(_TRAINER + "_save_checkpoint", "overridden: checkpoints are Oakum's"),
        Name(_TRAINER + "save_model", "overridden: the first rank alone writes"),
        Name(_TRAINER + "is_world_process_zero", "overridden: says which rank is the first", ""),
        Name(_TRAINER + "is_local_process_zero", "overridden: says which rank prints", ""),
        Name(
            _TRAINER + "_get_num_items_in_batch",
            "called: the divisor of a mean over tokens",
            "batch_samples device ...",
        ),
        Name(
            _TRAINER + "_get_collator_with_removed_columns",
            "called: columns that the model does not take",
            "data_collator description ...",
        ),
        Name(
            _TRAINER + "_remove_unused_columns",
            "called: columns that the model does not take",
            "dataset description ...",
        ),
        Name("transformers.trainer_callback:ExportableState.state", "called: state of callbacks", ""),
        Name("transformers.trainer_callback:TrainerControl.state", "called: state of the control", ""),
        Name("transformers.utils:is_datasets_available", "called: whether there is a library of data sets", ""),
    ),
    of_objects=(
        Name("accelerator.backward", "replaced: adds gradients to the session's", "loss ..."),
        Name("callback_handler.callbacks", "a follower becomes the first of the callbacks"),
        Name("args._n_gpu", "set: a rank has one device"),
        Name("args.eval_on_start", "set: a rank that joins does not evaluate once more"),
        Name("state.log_history", "part of the state"),
        Name("state.is_world_process_zero", "set: which rank is the first"),
        Name("state.is_local_process_zero", "set: which rank prints"),
        Name("control.should_epoch_stop", "read: refuses an epoch that is cut short"),
        Name("control.should_training_stop", "set: where the other ranks have ended training"),
    ),
    of_training=(
        Name("_tr_loss", "part of the state: sum of losses since the last log"),
        Name("_total_loss_scalar", "part of the state: sum of all losses"),
        Name("_globalstep_last_logged", "part of the state: the step of the last log"),
        Name("_initial_global_step", "part of the state: the step at which train() began"),
    ),
    of_others=(
        Name(
            "transformers.integrations.integration_utils:WandbCallback._initialized",
            "set: a rank that becomes the first calls the setup of its trackers",
        ),
    ),
)

_ACCELERATOR = "accelerate:Accelerator."
ACCELERATE = Reliance(
    adapter="oakum.accelerate.Accelerator",
    library="accelerate",
    tested="1.15.0",
    names=(
        Name(_ACCELERATOR + "prepare_model", "overridden: the session has the model", "model ..."),
        Name(_ACCELERATOR + "prepare_optimizer", "overridden: the session takes the step", "optimizer ..."),
        Name(_ACCELERATOR + "prepare_data_loader", "overridden: the session reads the samples", "data_loader ..."),
        Name(_ACCELERATOR + "prepare_scheduler", "overridden: its state is the trainer's", "scheduler"),
        Name(_ACCELERATOR + "register_for_checkpointing", "overridden: the state is the trainer's", "objects"),
        Name(_ACCELERATOR + "backward", "overridden: adds gradients to the session's", "loss kwargs"),
        Name(_ACCELERATOR + "_do_sync", "overridden: says which part is the last before a step", ""),
        Name(_ACCELERATOR + "no_sync", "overridden: gradients are summed at the step", "model"),
        Name(_ACCELERATOR + "clip_grad_norm_", "overridden: sums the gradients first", "parameters max_norm ..."),
        Name(_ACCELERATOR + "clip_grad_value_", "overridden: sums the gradients first", "parameters clip_value"),
        Name(_ACCELERATOR + "end_training", "overridden: ends training on all ranks", ""),
        Name(_ACCELERATOR + "save_state", "overridden: checkpoints are Oakum's"),
        Name(_ACCELERATOR + "load_state", "overridden: checkpoints are Oakum's"),
        Name(_ACCELERATOR + "lomo_backward", "overridden: LOMO steps before gradients are summed"),
        Name(_ACCELERATOR + "set_trigger", "overridden: ranks would decide differently", ""),
        Name(_ACCELERATOR + "check_trigger", "overridden: ranks would decide differently", ""),
        Name(
            _ACCELERATOR + "skip_first_batches",
            "overridden: refused for the loader that is trained on",
            "dataloader num_batches",
        ),
        Name(_ACCELERATOR + "gradient_accumulation_steps", "overridden: refused where it is set later"),
        Name(_ACCELERATOR + "init_trackers", "overridden: the first rank alone opens runs"),
        Name(_ACCELERATOR + "get_tracker", "overridden: the first rank alone has runs", "name ..."),
        Name(_ACCELERATOR + "log", "overridden: the first rank alone logs"),
        Name(_ACCELERATOR + "on_main_process", "overridden: says which rank is the first", "function"),
        Name(_ACCELERATOR + "on_local_main_process", "overridden: says which rank is the first", "function"),
        Name(_ACCELERATOR + "on_last_process", "overridden: says which rank is the first", "function"),
        Name(_ACCELERATOR + "on_process", "overridden: says which rank this is", "function process_index"),
        Name(
            _ACCELERATOR + "on_local_process",
            "overridden: says which rank this is",
            "function local_process_index",
        ),
        Name(_ACCELERATOR + "save", "overridden: the first rank alone writes", "obj f ..."),
        Name(_ACCELERATOR + "save_model", "overridden: the first rank alone writes"),
        Name(_ACCELERATOR + "is_main_process", "overridden: says which rank is the first"),
        Name(_ACCELERATOR + "is_local_main_process", "overridden: says which rank prints"),
        Name(
            "accelerate.optimizer:AcceleratedOptimizer.step_was_skipped",
            "says after a lost step that it was not taken",
        ),
        Name("accelerate.utils:send_to_device", "called: a batch to its device", "tensor device ..."),
    ),
    of_objects=(
        Name("_optimizers", "read: the optimizers that a lost step is told to"),
        Name("state.dynamo_plugin.backend", "read: refuses compilation"),
        Name(
            "gradient_state._set_sync_gradients",
            "called: whether a step follows the present part",
            "sync_gradients",
        ),
    ),
    of_training=(Name("_is_overflow", "set, of a prepared optimizer: what step_was_skipped returns"),),
)

_FABRIC = "lightning.fabric:Fabric."
FABRIC = Reliance(
    adapter="oakum.lightning.Fabric",
    library="lightning",
    tested="2.6.6",
    names=(
        Name(_FABRIC + "setup", "overridden: the session has model and optimizer", "module optimizers ..."),
        Name(_FABRIC + "setup_module", "overridden: the session has the model", "module ..."),
        Name(_FABRIC + "setup_optimizers", "overridden: the session takes the step", "optimizers"),
        Name(_FABRIC + "setup_dataloaders", "overridden: the session reads the samples", "dataloaders ..."),
        Name(_FABRIC + "backward", "overridden: adds gradients to the session's", "tensor args ..."),
        Name(_FABRIC + "clip_gradients", "overridden: sums the gradients first", "module optimizer clip_val ..."),
        Name(_FABRIC + "is_global_zero", "overridden: says which rank is the first"),
        Name(_FABRIC + "log_dict", "overridden: the first rank alone logs", "metrics step"),
        Name(_FABRIC + "save", "overridden: the first rank alone writes", "path state ..."),
        Name(_FABRIC + "to_device", "called: a batch to its device", "obj"),
        Name(_FABRIC + "strategy", "read: refuses strategies for several devices, and float16"),
        Name("lightning.fabric.strategies:SingleDeviceStrategy", "the only strategy that is not refused"),
        Name(
            "lightning.fabric.plugins.environments:LightningEnvironment",
            "given to the library, so that it does not look at the scheduler's variables",
        ),
    ),
)

TRAINING_EPOCH_LOOP = "lightning.pytorch.loops.training_epoch_loop:_TrainingEpochLoop"
LOADER_ITER_FETCHER = "lightning.pytorch.loops.fetchers:_DataLoaderIterDataFetcher"
RESULT_COLLECTION = "lightning.pytorch.trainer.connectors.logger_connector.result:_ResultCollection"
CALLBACKS_STATE_DICT = "lightning.pytorch.trainer.call:_call_callbacks_state_dict"
CALL_STRATEGY_HOOK = "lightning.pytorch.trainer.call:_call_strategy_hook"

_STRATEGY = "lightning.pytorch.strategies:SingleDeviceStrategy."
_COUNTS = ("ready", "started", "processed", "completed")
_LOOP = "fit_loop.epoch_loop."
_OPTIMIZER_STEP = _LOOP + "automatic_optimization.optim_progress.optimizer.step."


def _counters(path: str, *counts: str) -> tuple[Name, ...]:
    use = "set: follows from the session's finished steps"
    return tuple(Name(f"{path}{span}.{count}", use) for span in ("current", "total") for count in counts)


_MODEL_CHECKPOINT = "lightning.pytorch.callbacks:ModelCheckpoint."
LIGHTNING_TRAINER = Reliance(
    adapter="oakum.lightning.Trainer",
    library="lightning",
    tested="2.6.6",
    names=(
        Name(TRAINING_EPOCH_LOOP, "subclassed: an epoch that begins in its middle", "trainer min_steps max_steps"),
        Name(TRAINING_EPOCH_LOOP + ".reset", "overridden: counts the batches before this rank came", ""),
        Name(TRAINING_EPOCH_LOOP + ".advance", "overridden: ends where the others have ended", "data_fetcher"),
        Name(LOADER_ITER_FETCHER, "refused: a training_step that reads batches itself"),
        Name(RESULT_COLLECTION, "subclassed: what training_step logs", "training"),
        Name(RESULT_COLLECTION + ".metrics", "overridden: hides it from callbacks and schedulers", "on_step"),
        Name(CALLBACKS_STATE_DICT, "called: the callbacks' states", "trainer"),
        Name(CALL_STRATEGY_HOOK, "called: a repeated batch to its device", "trainer hook_name args kwargs"),
        Name(
            "lightning.pytorch:LightningModule._on_before_batch_transfer",
            "called: the module's hook for a repeated batch",
            "batch dataloader_idx",
        ),
        Name(_STRATEGY + "setup_optimizers", "overridden: the session takes the step", "trainer"),
        Name(_STRATEGY + "process_dataloader", "overridden: the session reads the samples", "dataloader"),
        Name(_STRATEGY + "optimizer_step", "overridden: sums the gradients", "optimizer closure model kwargs"),
        Name(_STRATEGY + "training_step", "overridden: computes a part of the share", "args kwargs"),
        Name(
            _STRATEGY + "backward",
            "overridden: adds to the session's gradients",
            "closure_loss optimizer args kwargs",
        ),
        Name(_STRATEGY + "batch_to_device", "called: a repeated batch", "batch device dataloader_idx"),
        Name(
            _STRATEGY + "save_checkpoint",
            "overridden: writes a file at once",
            "checkpoint filepath storage_options",
        ),
        Name(_STRATEGY + "remove_checkpoint", "overridden: the first rank alone removes", "filepath"),
        Name(
            "lightning.pytorch.callbacks:ModelCheckpoint.file_exists",
            "replaced: all ranks know",
            "filepath trainer",
        ),
        Name(_STRATEGY + "is_global_zero", "overridden: says which rank is the first"),
        Name(
            "lightning.pytorch:Trainer.save_checkpoint",
            "overridden: the first rank alone writes",
            "filepath weights_only storage_options",
        ),
        Name("lightning.pytorch:Trainer.print", "overridden: the first rank alone prints"),
        Name("lightning.pytorch:Trainer.is_global_zero", "overridden: says which rank is the first"),
        Name("lightning.pytorch.trainer.states:RunningStage.TRAINING", "read: which loader is trained on"),
        Name("lightning.pytorch.utilities.model_helpers:is_overridden", "called: refuses a backward of one's own"),
    ),
    of_objects=(
        Name("_signal_connector.register_signal_handlers", "replaced: signals are the agent's", ""),
        Name("_logger_connector.log_metrics", "replaced: the first rank alone logs", "metrics step"),
        Name("_logger_connector._callback_metrics", "filled: metrics that can be monitored, on a rank that joins"),
        Name("strategy.precision_plugin.convert_input", "called: a repeated batch", "data"),
        Name("strategy.precision_plugin.pre_backward", "called: around the session's backward", "tensor module"),
        Name("strategy.precision_plugin.post_backward", "called: around the session's backward", "tensor module"),
        Name("fit_loop.min_epochs", "set: ends training"),
        Name("fit_loop.max_epochs", "read: the number of epochs"),
        Name(_LOOP + "min_steps", "set: ends training"),
        Name(_LOOP + "max_steps", "the loop is made anew with it"),
        Name(_LOOP + "_results", "replaced: what training_step logs"),
        Name(_LOOP + "_batches_that_stepped", "set: follows from the session's finished steps"),
        Name(_LOOP + "batch_progress.is_last_batch", "set: a repeated step may be an epoch's last"),
        *_counters("fit_loop.epoch_progress.", *_COUNTS),
        *_counters(_LOOP + "batch_progress.", *_COUNTS),
        *_counters(_OPTIMIZER_STEP, "ready", "completed"),
    ),
    of_training=(
        Name("fit_loop._data_fetcher.fetched", "set: follows from the session's finished steps"),
        Name("fit_loop._data_fetcher.done", "set: a repeated step may be an epoch's last"),
        Name("lr_scheduler_configs", "read: the schedulers, which are part of the state"),
    ),
    of_others=(
        Name(_MODEL_CHECKPOINT + "_last_global_step_saved", "part of the state: the step of the last checkpoint"),
        Name(_MODEL_CHECKPOINT + "_last_checkpoint_saved", "part of the state: the last checkpoint"),
        Name(
            _MODEL_CHECKPOINT + "_defer_save_until_validation", "part of the state: one that is still to be saved"
        ),
        Name(_MODEL_CHECKPOINT + "_train_time_interval", "read: refuses to save by the clock"),
    ),
)
