"""`accelerate.Accelerator` under `oakum.accelerate.Accelerator`."""

from __future__ import annotations

from oakum.surface.tables import Surface
from oakum.surface.verdicts import means, merged, refused, supported

__all__ = ["BACKWARD", "CONSTRUCTOR", "MEMBERS", "PREPARE_DATA_LOADER", "PREPARE_MODEL", "SURFACES"]

_SHARDED = "shard the model with a Task and `parallel`"
_NO_STATE = "is never called: checkpoints are Oakum's"

CONSTRUCTOR = Surface(
    "accelerate:Accelerator",
    "arguments",
    merged(
        supported("cpu project_dir project_config"),
        means(
            "gradient_accumulation_steps gradient_accumulation_plugin",
            "is a factor of the global batch, of which a rank computes as many parts as its share has",
        ),
        means(
            "split_batches", "does nothing: the loader's `batch_size` is a part of the global batch in any case"
        ),
        means("device_placement", "holds for models; batches to train on are always moved to the device"),
        means(
            "dataloader_config",
            "holds for loaders that do not shuffle; samples to train on are read by Oakum, in the order of `seed`",
        ),
        means("rng_types", "does nothing: random numbers follow from the seed, the step and the sample"),
        means("log_with", "makes trackers on the first rank alone, in a run for each process that becomes it"),
        refused(
            "step_scheduler_with_optimizer",
            "step the scheduler where accelerator.sync_gradients is True, and give it to "
            "register_for_checkpointing()",
        ),
        means(
            "kwargs_handlers", "works for autocasting and profiling; those of processes and gradients do nothing"
        ),
        refused("mixed_precision", "use 'bf16'", given="'fp16', 'fp8'"),
        refused("deepspeed_plugin deepspeed_plugins fsdp_plugin megatron_lm_plugin", _SHARDED),
        refused("torch_tp_plugin parallelism_config", _SHARDED),
        refused("dynamo_backend dynamo_plugin", "compile with a Task and `compile: true`"),
    ),
)

BACKWARD = Surface(
    "accelerate:Accelerator.backward",
    "arguments",
    merged(
        means("loss", "is the mean over the batch that the loader gave, a part of this rank's share"),
        refused("kwargs", "add the losses up and call backward once", given="`retain_graph`, `inputs` and others"),
    ),
)

PREPARE_MODEL = Surface(
    "accelerate:Accelerator.prepare_model",
    "arguments",
    merged(
        supported("model device_placement"),
        means("evaluation_mode", "makes the model part of the trainer's state, as any other"),
    ),
)

PREPARE_DATA_LOADER = Surface(
    "accelerate:Accelerator.prepare_data_loader",
    "arguments",
    merged(
        means("data_loader", "is trained on where it shuffles, and read whole on every rank where it does not"),
        means("device_placement", "holds for loaders that do not shuffle"),
        means("slice_fn_for_dispatch", "does nothing"),
    ),
)

MEMBERS = Surface(
    "accelerate:Accelerator",
    "members",
    merged(
        supported(
            "autocast device get_state_dict is_composable_parallelism_enabled is_fsdp2 maybe_context_parallel "
            "mixed_precision optimizer_step_was_skipped prepare prepare_scheduler print project_dir logging_dir "
            "unscale_gradients unwrap_model verify_device_map sync_gradients fp8_backend deepspeed_plugin "
            "deepspeed_ulysses_dl_adapter parallelism_config torch_device_mesh save_iteration"
        ),
        supported(
            "context_parallel_rank data_parallel_rank data_parallel_shard_rank pipeline_parallel_rank "
            "tensor_parallel_rank"
        ),
        means("accumulate", "says by `sync_gradients` which part of this rank's share is its last"),
        means("backward", "adds the gradient of the mean over the present part to the step's"),
        means("prepare_model prepare_optimizer", "makes its argument part of the trainer's state; one optimizer"),
        means("prepare_data_loader", "gives this rank's shares of a loader that shuffles"),
        means("register_for_checkpointing", "makes its arguments part of the trainer's state"),
        means("no_sync trigger_sync_in_backward", "does nothing: gradients are summed when the step is taken"),
        means("clip_grad_norm_ clip_grad_value_", "sums the gradients first, and clips the global batch's"),
        means("gather gather_for_metrics reduce", "returns this rank's own values"),
        means("pad_across_processes", "pads nothing: there is one process"),
        means("split_between_processes", "gives every rank all of it"),
        means("wait_for_everyone", "does nothing: ranks meet at the step"),
        means("join_uneven_inputs", "does nothing: every rank has a share of each step"),
        means("main_process_first local_main_process_first", "lets all ranks run at once"),
        means(
            "is_main_process is_local_main_process",
            "says whether this is rank 0, which may be another process after a step",
        ),
        means("is_last_process should_save_model", "is True on every rank"),
        means(
            "process_index local_process_index",
            "is this rank's number, which another process may have after a step",
        ),
        means("num_processes", "is 1: the batch is the global one, at any number of ranks"),
        means("multi_device use_distributed", "is False at any number of ranks"),
        means("distributed_type", "is `NO` at any number of ranks"),
        means("on_main_process on_local_main_process on_last_process", "runs on the first rank alone"),
        means("on_process on_local_process", "runs on the rank of the number, where there is one"),
        means(
            "init_trackers log",
            "works on the first rank alone, once training has begun, in a run for each process that becomes it",
        ),
        means(
            "get_tracker", "gives the first rank's, and others one that does nothing; not before the first epoch"
        ),
        means("save save_model", "writes on the first rank alone"),
        means("profile", "writes each rank's trace to one name"),
        refused("set_trigger check_trigger", "decide by what is equal on all ranks, such as a loss of validation"),
        means("end_training", "ends training on all ranks, where the script has left its loop early"),
        means("free_memory clear", "frees what the library holds: Oakum holds the model until the script's end"),
        refused("gradient_accumulation_steps", "give it to Accelerator(...)", given="a value set later"),
        means(
            "dispatch_batches even_batches non_blocking split_batches use_seedable_sampler "
            "use_stateful_dataloader",
            "holds for loaders that do not shuffle",
        ),
        means("register_save_state_pre_hook register_load_state_pre_hook", _NO_STATE),
        refused(
            "skip_first_batches",
            "a trainer goes on in the epoch's middle by itself",
            given="the loader that is trained on",
        ),
        refused("lomo_backward", "use an optimizer that steps all layers at once"),
        refused("save_state", "checkpoints are Oakum's, by the spec's `checkpoint`"),
        refused("load_state", "a trainer goes on from its newest checkpoint by itself"),
    ),
)

SURFACES = (CONSTRUCTOR, PREPARE_MODEL, PREPARE_DATA_LOADER, BACKWARD, MEMBERS)
