"""`lightning.Trainer`, `LightningModule` and `Callback` under `oakum.lightning.Trainer`."""

from __future__ import annotations

from oakum.surface.tables import Surface
from oakum.surface.verdicts import means, merged, refused, supported

__all__ = ["CALLBACK", "CONSTRUCTOR", "FIT", "MEMBERS", "MODULE", "SURFACES"]

_EACH_PART = "is called for each part of this rank's share"
_OF_THE_STATE = "is part of the trainer's state"
_WHOLE = "runs on every rank, over the whole data set, so that all ranks know the result"

_HOOKS = (
    "on_before_optimizer_step on_fit_end on_predict_batch_end on_predict_batch_start on_predict_end "
    "on_predict_epoch_end on_predict_epoch_start on_predict_start on_test_batch_end on_test_batch_start "
    "on_test_end on_test_epoch_end on_test_epoch_start on_test_start on_train_end on_train_epoch_end "
    "on_validation_batch_end on_validation_batch_start on_validation_end on_validation_epoch_end "
    "on_validation_epoch_start on_validation_start setup teardown"
)
_CHANGED_HOOKS = merged(
    means("on_fit_start on_train_start", "is called on a rank that joins, too, when it joins"),
    means("on_train_epoch_start", "is called on a rank that joins, too, for the epoch under way"),
    means(
        "on_train_batch_start",
        "gets this rank's share of a global batch; the -1 that ends an epoch is refused",
    ),
    means("on_train_batch_end", "gets this rank's share of a global batch, and the outputs of its last part"),
    means("on_before_zero_grad on_before_backward", _EACH_PART),
    means("on_after_backward", "is called for each part of this rank's share, before gradients are summed"),
)

CONSTRUCTOR = Surface(
    "lightning:Trainer",
    "arguments",
    merged(
        supported(
            "accelerator min_epochs max_steps min_steps limit_val_batches limit_test_batches "
            "limit_predict_batches check_val_every_n_epoch log_every_n_steps gradient_clip_val "
            "gradient_clip_algorithm deterministic benchmark inference_mode profiler detect_anomaly barebones "
            "default_root_dir"
        ),
        means(
            "logger enable_autolog_hparams", "writes metrics on the first rank alone, in a run for each process"
        ),
        means(
            "enable_checkpointing model_registry",
            "holds for a `ModelCheckpoint` of the script's own: the one that the library adds by itself writes "
            "only where the script trains alone",
        ),
        means("enable_progress_bar enable_model_summary", "is off under a trainer"),
        means("accumulate_grad_batches", "is a factor of the global batch, which is one batch to the library"),
        means("num_sanity_val_steps", "validates on every rank when it begins, also on one that joins later"),
        means("use_distributed_sampler", "does nothing: Oakum deals the samples"),
        refused("plugins", "use precision='bf16-mixed'", given="those for float16"),
        refused("strategy", "Oakum brings the ranks and their sums"),
        refused("devices", "a rank has one device, and Oakum the ranks", given="more than 1"),
        refused("num_nodes", "Oakum brings the nodes"),
        refused("precision", "use 'bf16-mixed' or 'bf16-true'", given="16, '16-mixed', '16-true'"),
        refused("max_epochs", "give the number of epochs", given="-1"),
        refused("max_time", "ranks have clocks of their own; give max_epochs or max_steps"),
        refused("limit_train_batches", "each sample is visited once per epoch; train on a subset of the data set"),
        refused("overfit_batches", "train on a subset of the data set"),
        refused("fast_dev_run", "use `oakum try`"),
        refused("reload_dataloaders_every_n_epochs", "the data set is the same in all epochs"),
        refused("sync_batchnorm", "use GroupNorm or LayerNorm"),
        refused(
            "val_check_interval",
            "give a fraction of an epoch, or steps without accumulate_grad_batches",
            given="times, and steps with accumulate_grad_batches",
        ),
        refused(
            "callbacks",
            "use what the spec and the optimizer have in their place",
            given="`BatchSizeFinder`, `GradientAccumulationScheduler`, `LearningRateFinder`, "
            "`StochasticWeightAveraging`, `Timer`, `WeightAveraging`, `ModelCheckpoint(train_time_interval=...)`",
        ),
    ),
)

FIT = Surface(
    "lightning:Trainer.fit",
    "arguments",
    merged(
        supported("val_dataloaders datamodule"),
        means("weights_only", "does nothing, since `ckpt_path` is refused"),
        refused("model", "put the loop into oakum.session(...)", given="those that optimize by hand"),
        refused(
            "train_dataloaders", "give one DataLoader with shuffle=True", given="any but one loader that shuffles"
        ),
        refused("ckpt_path", "a trainer goes on from its newest checkpoint by itself"),
    ),
)

MEMBERS = Surface(
    "lightning:Trainer",
    "members",
    merged(
        supported(
            "accelerator checkpoint_callback checkpoint_callbacks ckpt_path current_epoch default_root_dir "
            "distributed_sampler_kwargs early_stopping_callback early_stopping_callbacks enable_validation "
            "estimated_stepping_batches evaluating global_step init_module interrupted is_last_batch "
            "lightning_module log_dir logger loggers lr_scheduler_configs max_epochs max_steps min_epochs "
            "min_steps model num_predict_batches num_sanity_val_batches num_test_batches num_val_batches "
            "precision precision_plugin predict_dataloaders predicting progress_bar_callback sanity_checking "
            "scaler test_dataloaders testing training val_dataloaders validating"
        ),
        means("fit", "trains once in a script: a second call is a second session, which a trainer refuses"),
        means("validate test predict", _WHOLE),
        means("save_checkpoint", "writes on the first rank alone; training goes on from Oakum's checkpoints"),
        means("num_training_batches", "is the number of global batches in an epoch"),
        means("train_dataloader", "gives this rank's shares to fit(): do not iterate over it yourself"),
        means("optimizers", "has one optimizer, whose step is the session's"),
        means("strategy", "is Oakum's, for one device"),
        means("callback_metrics", "has the metrics of validation, and nothing that `training_step` logs"),
        means("logged_metrics progress_bar_metrics", "has of `training_step` what this rank's last part logged"),
        means("print", "prints on the first rank alone"),
        means("is_global_zero", "says whether this is rank 0, which may be another process after a step"),
        means("global_rank", "is this rank's number, which another process may have after a step"),
        means("local_rank node_rank", "is 0 on every rank"),
        means("world_size num_devices num_nodes", "is 1: the batch is the global one, at any number of ranks"),
        means("device_ids", "has this rank's one device"),
        means("received_sigterm", "is False: signals are the agent's"),
    ),
)

MODULE = Surface(
    "lightning:LightningModule",
    "members",
    merged(
        supported(_HOOKS),
        _CHANGED_HOOKS,
        supported(
            "CHECKPOINT_HYPER_PARAMS_KEY CHECKPOINT_HYPER_PARAMS_NAME CHECKPOINT_HYPER_PARAMS_TYPE clip_gradients "
            "configure_callbacks configure_gradient_clipping configure_model configure_sharded_model cpu cuda "
            "current_epoch device device_mesh double dtype example_input_array fabric float forward freeze "
            "global_step half hparams hparams_initial load_from_checkpoint logger loggers lr_scheduler_step "
            "lr_schedulers on_after_batch_transfer on_before_batch_transfer on_gpu on_predict_model_eval "
            "on_test_model_eval on_test_model_train on_validation_model_eval on_validation_model_train "
            "on_validation_model_zero_grad optimizers predict_dataloader predict_step print "
            "remove_ignored_hparams save_hyperparameters strict_loading test_dataloader test_step to to_onnx "
            "to_tensorrt to_torchscript toggle_optimizer toggled_optimizer trainer transfer_batch_to_device type "
            "unfreeze untoggle_optimizer val_dataloader validation_step"
        ),
        means(
            "training_step",
            "gets a part of this rank's share, and returns the mean over its samples; `batch_idx` counts global "
            "batches, and None is refused",
        ),
        means("train_dataloader", "returns one DataLoader with shuffle=True, read in Oakum's order"),
        means("configure_optimizers", "returns one optimizer, with schedulers"),
        means(
            "log log_dict", "logs, in `training_step`, numbers of this rank's last part, which nothing may monitor"
        ),
        means("all_gather", "returns this rank's own values"),
        means("global_rank", "is this rank's number, which another process may have after a step"),
        means("local_rank", "is 0 on every rank"),
        means("prepare_data", "is called on every rank, at once: let it wait for another that downloads"),
        means("on_save_checkpoint", "gets an empty mapping after each step, and what it writes " + _OF_THE_STATE),
        means("on_load_checkpoint", "gets what `on_save_checkpoint` wrote, on a rank that joins"),
        means(
            "optimizer_step",
            "has to call `optimizer.step(closure=optimizer_closure)`; any other use is refused",
        ),
        refused(
            "optimizer_zero_grad",
            "leave it out: the session forgets gradients when a step begins",
            given="one of the module's own",
        ),
        means("manual_backward", "is for modules that optimize by hand, which are refused"),
        refused("backward", "leave it out, or use oakum.session(...)", given="one of the module's own"),
        refused("automatic_optimization", "put the loop into oakum.session(...)", given="False"),
    ),
)

CALLBACK = Surface(
    "lightning:Callback",
    "members",
    merged(
        supported(_HOOKS),
        _CHANGED_HOOKS,
        supported("on_exception on_sanity_check_end on_sanity_check_start state_key"),
        means("state_dict load_state_dict", _OF_THE_STATE),
        means("on_save_checkpoint on_load_checkpoint", "is not called under a trainer: use `state_dict`"),
    ),
)

SURFACES = (CONSTRUCTOR, FIT, MEMBERS, MODULE, CALLBACK)
