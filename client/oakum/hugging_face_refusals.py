"""What of the `Trainer` of transformers cannot be kept when nodes come and go, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import transformers
from torch.utils.data import IterableDataset
from transformers import TrainingArguments

from oakum_worker.data_sets import is_stream
from oakum_worker.errors import SessionError

_INSTEAD_OF_SAMPLER = (
    "and Oakum deals the samples, each once per epoch, in an order that follows from the seed: leave it out. To "
    "draw some samples more often than others, give a data set whose __getitem__ draws which one it returns, as "
    "with oakum_worker.generators.sample_rng()"
)


def complaints(args: TrainingArguments) -> Iterator[str]:
    """Why these arguments cannot be kept when nodes come and go, and what to do."""
    fractional = args.max_steps <= 0 and args.num_train_epochs != int(args.num_train_epochs)
    refused = {
        "deepspeed": (args.deepspeed, "shard the model with a Task and `parallel: {data: sharded}`"),
        "fsdp": (args.fsdp, "shard the model with a Task and `parallel: {data: sharded}`"),
        "parallelism_config": (args.parallelism_config, "divide the model with a Task and `parallel`"),
        "fp16": (args.fp16, "use bf16"),
        "torch_compile": (args.torch_compile, "compile with a Task and `compile: true`"),
        "auto_find_batch_size": (args.auto_find_batch_size, "give per_device_train_batch_size"),
        "dataloader_drop_last": (args.dataloader_drop_last, "each sample is visited once per epoch"),
        "train_sampling_strategy": (
            args.train_sampling_strategy != "random",
            "samples come in an order that follows from the seed",
        ),
        "load_best_model_at_end": (
            args.load_best_model_at_end,
            "checkpoints are Oakum's: export the one you want",
        ),
        "save_strategy='best'": (args.save_strategy == "best", "checkpoints are Oakum's"),
        "enable_jit_checkpoint": (args.enable_jit_checkpoint, "Oakum saves when a node is taken"),
        "push_to_hub": (args.push_to_hub, "push the folder that `oakum export` writes"),
        "resume_from_checkpoint": (args.resume_from_checkpoint, "a trainer goes on by itself"),
        "num_train_epochs": (fractional, "give whole epochs, or max_steps"),
        "include_num_input_tokens_seen": (
            args.include_num_input_tokens_seen not in ("no", False),
            "one rank sees a share of the tokens",
        ),
        "optim": ("lomo" in args.optim or "layerwise" in args.optim, "use one that steps all layers at once"),
    }
    for name, (is_set, advice) in refused.items():
        if is_set:
            yield f"{name} is set, and cannot be kept when nodes come and go: {advice}; leave it out"
    if args.world_size > 1:
        yield "started by torchrun or accelerate: start the script with plain python, or submit it to Oakum"


def complaints_of(kind: type[transformers.Trainer], adapter: type[transformers.Trainer]) -> Iterator[str]:
    """Why methods that `kind`, a subclass of the adapter's `Trainer`, has of its own cannot be kept when nodes
    come and go, and what to do."""
    refused = {
        "get_train_dataloader": adapter,
        "_get_train_sampler": transformers.Trainer,
        "_get_dataloader": transformers.Trainer,
    }
    for name, owner in refused.items():
        if getattr(kind, name, None) is not getattr(owner, name, None):
            yield f"{kind.__name__} has a {name} of its own, {_INSTEAD_OF_SAMPLER}"


def refuse_unordered(dataset: Any) -> None:
    """Raise `SessionError` for a data set that can be read from its beginning alone."""
    has_no_index = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
    if is_stream(dataset):
        return
    if has_no_index or not hasattr(dataset, "__len__"):
        raise SessionError(
            f"train_dataset is a {type(dataset).__name__}, which is read from its beginning and in one piece, and "
            "ranks that come and go read any share of it: give a data set with __len__ and __getitem__ (of the "
            "datasets library: load_dataset without streaming=True), or an oakum_worker.data_sets.SampleStream"
        )
