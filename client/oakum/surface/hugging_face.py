"""`transformers.Trainer` and `TrainingArguments` under `oakum.hugging_face.Trainer`."""

from __future__ import annotations

from oakum.surface.tables import Surface
from oakum.surface.verdicts import means, merged, refused, supported

__all__ = ["ARGUMENTS", "ATTRIBUTES", "CONSTRUCTOR", "MEMBERS", "OVERRIDES", "SURFACES", "TRAIN"]

_NO_CHECKPOINTS = "matters only where the script trains alone: checkpoints are Oakum's, by the spec's `checkpoint`"
_NO_RESUME = "does nothing: a trainer goes on by itself, with each sample read once"
_NO_DDP = "does nothing: Oakum sums the gradients itself, without DistributedDataParallel"
_NO_HUB = "does nothing, since `push_to_hub` is refused"
_EVALUATION_ONLY = "holds for the data loaders of evaluation; samples to train on are read by Oakum"
_EACH_RANK = "is the same on every rank, each of which the library takes for the only process"
_MODEL_DIVIDED = "divide the model with a Task and `parallel`"
_SHARDED = "shard the model with a Task and `parallel: {data: sharded}`"

ARGUMENTS = Surface(
    "transformers:TrainingArguments",
    "fields",
    merged(
        supported(
            "output_dir max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim_args "
            "weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules max_grad_norm "
            "label_smoothing_factor bf16 bf16_full_eval fp16_full_eval tf32 activation_checkpointing "
            "activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs "
            "use_liger_kernel liger_kernel_config use_cache torch_empty_cache_steps use_cpu full_determinism"
        ),
        supported(
            "logging_strategy logging_steps logging_first_step logging_nan_inf_filter eval_strategy eval_steps "
            "eval_delay per_device_eval_batch_size prediction_loss_only eval_do_concat_batches "
            "eval_accumulation_steps include_for_metrics batch_eval_metrics metric_for_best_model "
            "greater_is_better remove_unused_columns label_names do_train do_eval do_predict debug"
        ),
        means(
            "per_device_train_batch_size",
            "is what a rank computes at once; times `gradient_accumulation_steps` it is the global batch, at any "
            "number of nodes",
        ),
        means(
            "gradient_accumulation_steps",
            "is a factor of the global batch: a rank computes as many parts as its share has, and callbacks see "
            "one step",
        ),
        means("average_tokens_across_devices", "is always on: the mean is over the global batch's tokens"),
        means("seed", "is also the seed of the samples' order, without `data_seed`; the spec's has to be equal"),
        means("data_seed", "is the seed of the samples' order in Oakum; the spec's has to be equal"),
        means(
            "neftune_noise_alpha",
            "scales its noise by the padded length of the part that a rank computes: pad to one length",
        ),
        means(
            "eval_on_start",
            "evaluates on every rank when it begins, and not on one that joins after the first step",
        ),
        means("eval_use_gather_object", "does nothing: every rank has all predictions"),
        means("skip_memory_metrics", "tells, where False, the first rank's own memory"),
        means("disable_tqdm", "is always on under a trainer: the log is printed in lines"),
        means("log_level", "holds on every rank, since each is a main process to the library"),
        means("log_level_replica log_on_each_node", "does nothing: each rank is a main process to the library"),
        means(
            "report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id",
            "makes a run for each process that becomes the first rank; `oakum metrics` has one series",
        ),
        means(
            "save_steps save_total_limit save_only_model save_on_each_node "
            "restore_callback_states_from_checkpoint",
            _NO_CHECKPOINTS,
        ),
        means("ignore_data_skip", _NO_RESUME),
        means("hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision", _NO_HUB),
        means(
            "accelerator_config",
            "holds for the data loaders of evaluation, and its `num_steps` ends training with an error",
            "give gradient_accumulation_steps in place of gradient_accumulation_kwargs",
        ),
        means(
            "dataloader_num_workers",
            "is the number of each rank's processes that read ahead; the spec's `workers` has to be equal",
        ),
        means(
            "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
            "dataloader_multiprocessing_context dataloader_in_order",
            _EVALUATION_ONLY,
        ),
        means("length_column_name", "does nothing, since grouping by length is refused"),
        means(
            "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend "
            "ddp_timeout",
            _NO_DDP,
        ),
        means("fsdp_config", "does nothing, since `fsdp` is refused"),
        means("local_rank", "does nothing"),
        refused("deepspeed fsdp", _SHARDED),
        refused("parallelism_config", _MODEL_DIVIDED),
        refused("fp16", "use bf16"),
        refused("torch_compile", "compile with a Task and `compile: true`"),
        means("torch_compile_backend torch_compile_mode", "turns `torch_compile` on, which is refused"),
        refused("auto_find_batch_size", "give per_device_train_batch_size"),
        refused("dataloader_drop_last", "each sample is visited once per epoch"),
        refused("train_sampling_strategy", "samples come in an order that follows from the seed"),
        refused("load_best_model_at_end", "checkpoints are Oakum's: export the one you want"),
        refused("enable_jit_checkpoint", "Oakum saves when a node is taken"),
        refused("save_strategy", "checkpoints are Oakum's, with the other values, too", given="'best'"),
        refused("push_to_hub", "push the folder that `oakum export` writes"),
        refused("resume_from_checkpoint", "a trainer goes on by itself"),
        refused("num_train_epochs", "give whole epochs, or max_steps", given="fractions"),
        refused("include_num_input_tokens_seen", "one rank sees a share of the tokens"),
        refused("optim", "use one that steps all layers at once", given="LOMO and layer-wise ones"),
    ),
)
"""The schedule-free ones of `optim` should be refused, too: they switch the weights between training and
evaluation, and the session's optimizer does not pass the switch on."""

CONSTRUCTOR = Surface(
    "transformers:Trainer",
    "arguments",
    merged(
        supported(
            "model args data_collator eval_dataset processing_class model_init compute_loss_func compute_metrics "
            "callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics"
        ),
        refused(
            "train_dataset",
            "give one with `__len__` and `__getitem__`, which is read in Oakum's order, or a `SampleStream`",
            given="those without an order, such as an `IterableDataset`",
        ),
    ),
)

TRAIN = Surface(
    "transformers:Trainer.train",
    "arguments",
    merged(
        supported("ignore_keys_for_eval"),
        refused("resume_from_checkpoint", "a trainer goes on from its newest checkpoint by itself"),
        refused("trial", "submit a trainer for each trial"),
    ),
)

MEMBERS = Surface(
    "transformers:Trainer",
    "members",
    merged(
        supported(
            "add_callback autocast_smart_context_manager call_model_init compute_loss "
            "compute_loss_context_manager create_accelerator_and_postprocess create_model_card create_optimizer "
            "create_scheduler end get_cp_size get_decay_parameter_names get_eval_dataloader get_learning_rates "
            "get_num_trainable_parameters get_optimizer_cls_and_kwargs get_optimizer_group get_sp_size "
            "get_test_dataloader get_total_train_batch_size get_tp_size init_hf_repo metrics_format num_examples "
            "pop_callback remove_callback set_initial_training_values store_flos"
        ),
        means("train", "trains once in a script: a second call is a second session, which a trainer refuses"),
        means(
            "evaluate evaluation_loop predict prediction_step",
            "runs on every rank, over the whole data set, so that all ranks know the result",
        ),
        means("log", "is called on every rank, which keeps the log; the first rank prints it"),
        means("log_metrics save_metrics save_state save_model", "works on the first rank alone"),
        means("push_to_hub", "pushes from the first rank alone; call it after train()"),
        means(
            "is_local_process_zero is_world_process_zero",
            "says whether this is rank 0, which may be another process after a step",
        ),
        means("floating_point_ops", "counts those of the whole global batch, as many a sample as in the share"),
        means("training_step", "computes this rank's share, in parts, and returns the global batch's loss"),
        means("get_batch_samples", "returns this rank's share of the next global batch"),
        means(
            "get_train_dataloader",
            "gives the session's batches to train(), and a data loader of the library to any other caller",
        ),
        means("create_optimizer_and_scheduler", "is called by nobody, as in the library since its version 5"),
        means(
            "loss_is_scaled_for_ga",
            "says, where False, that the loss is a mean over the samples of a part; otherwise the loss of a model "
            "that takes `num_items_in_batch` is weighted by its tokens",
        ),
        refused("hyperparameter_search", "submit a trainer for each trial"),
    ),
)

ATTRIBUTES = Surface(
    "transformers:Trainer",
    "attributes",
    merged(
        supported(
            "callback_handler can_return_loss compute_loss_func compute_metrics current_flos "
            "data_collator eval_dataset gather_function label_names label_smoother lr_scheduler model model_init "
            "model_wrapped neftune_noise_alpha optimizer_cls_and_kwargs place_model_on_device "
            "preprocess_logits_for_metrics processing_class train_dataset is_in_train"
        ),
        supported(
            "deepspeed hp_name hp_search_backend hub_model_id is_deepspeed_enabled "
            "is_distributed_loading_by_transformers is_fsdp_enabled is_fsdp_xla_enabled is_fsdp_xla_v1_enabled "
            "is_fsdp_xla_v2_enabled is_model_parallel model_accepts_loss_kwargs"
        ),
        refused(
            "control",
            "end training by `should_training_stop`, or train on a subset of the data set",
            given="`should_epoch_stop` within an epoch",
        ),
        means(
            "args",
            "has the global batch as `per_device_train_batch_size`, and 1 as `gradient_accumulation_steps`; "
            "`world_size` is 1 and `process_index` 0 on every rank",
        ),
        means(
            "accelerator",
            "knows one process: `gather` returns this rank's own values, `is_main_process` is True on every rank",
        ),
        means("optimizer", "is one whose step is the session's: groups and state are the library's"),
        means("state", "is equal on all ranks but for `is_world_process_zero`, which is True on rank 0"),
    ),
)

OVERRIDES = Surface(
    "transformers:Trainer",
    "overrides",
    merged(
        supported(
            "_clip_grad_norm _determine_best_metric _evaluate _get_collator_with_removed_columns "
            "_get_eval_sampler _get_learning_rate _maybe_log_save_evaluate _move_model_to_device _prepare_input "
            "_prepare_inputs _remove_unused_columns _save _set_signature_columns_if_needed create_scheduler "
            "evaluate evaluation_loop get_decay_parameter_names get_eval_dataloader get_test_dataloader log "
            "num_examples predict prediction_step compute_loss_context_manager floating_point_ops save_model"
        ),
        means(
            "compute_loss",
            "gets a part of this rank's share, and returns the mean over its samples, or the sum over its tokens "
            "divided by `num_items_in_batch`",
        ),
        means("_get_num_items_in_batch", "counts the tokens of one part"),
        refused(
            "training_step",
            "call super().training_step(), which gets this rank's whole share, or override compute_loss",
            given="one that does not call the adapter's",
        ),
        refused(
            "get_batch_samples",
            "call super().get_batch_samples(), and change the batch that it returns",
            given="one that does not call the adapter's",
        ),
        means(
            "create_optimizer",
            "has to call the adapter's, after it has set `self.optimizer`: without it the first step ends with an "
            "error",
            "return super().create_optimizer()",
        ),
        refused("get_train_dataloader _get_train_sampler _get_dataloader", "weigh the samples in the data set"),
        means("_save_checkpoint _load_best_model _load_from_checkpoint", _NO_CHECKPOINTS),
        means(
            "_inner_training_loop _run_epoch _prepare_for_training _init_training_state _finalize_training",
            "is the library's inner loop, which the adapter overrides: call the adapter's",
        ),
        means("create_optimizer_and_scheduler", "is not called, as in the library since its version 5"),
    ),
)

SURFACES = (ARGUMENTS, CONSTRUCTOR, TRAIN, MEMBERS, ATTRIBUTES, OVERRIDES)
