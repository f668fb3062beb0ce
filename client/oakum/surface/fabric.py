"""`lightning.Fabric` under `oakum.lightning.Fabric`."""

from __future__ import annotations

from oakum.surface.tables import Surface
from oakum.surface.verdicts import means, merged, refused, supported

__all__ = ["BACKWARD", "CONSTRUCTOR", "MEMBERS", "SETUP", "SETUP_DATALOADERS", "SURFACES"]

_OAKUM_HAS = "a rank has one device, and Oakum the ranks"

CONSTRUCTOR = Surface(
    "lightning:Fabric",
    "arguments",
    merged(
        supported("accelerator callbacks"),
        refused("plugins", "use precision='bf16-mixed'", given="those for float16"),
        means("loggers", "has one logger on every rank; `log` and `log_dict` write on the first alone"),
        refused("strategy", _OAKUM_HAS, given="any for several devices"),
        refused("devices num_nodes", _OAKUM_HAS, given="more than 1"),
        refused("precision", "use 'bf16-mixed' or 'bf16-true'", given="16, '16-mixed', '16-true'"),
    ),
)

SETUP = Surface(
    "lightning:Fabric.setup",
    "arguments",
    merged(
        supported("move_to_device _reapply_compile"),
        means("module optimizers scheduler", "is part of the trainer's state; there is one optimizer"),
    ),
)

SETUP_DATALOADERS = Surface(
    "lightning:Fabric.setup_dataloaders",
    "arguments",
    merged(
        means("dataloaders", "is trained on where it shuffles, and read whole on every rank where it does not"),
        means("use_distributed_sampler", "does nothing: Oakum deals the samples"),
        means("move_to_device", "holds for loaders that do not shuffle"),
    ),
)

BACKWARD = Surface(
    "lightning:Fabric.backward",
    "arguments",
    merged(
        means("tensor", "is the mean over the batch that the loader gave, a part of this rank's share"),
        means("model", "does nothing"),
        refused(
            "args kwargs", "add the losses up and call backward once", given="`retain_graph`, `inputs` and others"
        ),
    ),
)

MEMBERS = Surface(
    "lightning:Fabric",
    "members",
    merged(
        supported(
            "accelerator autocast device init_module init_tensor load_raw logger loggers print run seed_everything"
        ),
        supported("sharded_model strategy to_device"),
        means("setup setup_module setup_optimizers", "makes its arguments part of the trainer's state"),
        means("setup_dataloaders", "gives this rank's shares of a loader that shuffles"),
        means("backward", "adds the gradient of the mean over the present part to the step's"),
        means("clip_gradients", "sums the gradients first, and clips the global batch's"),
        means("no_backward_sync", "does nothing: gradients are summed when the step is taken"),
        means("all_gather all_reduce broadcast", "returns this rank's own values"),
        means("barrier", "does nothing: ranks meet at the step"),
        means("rank_zero_first", "lets all ranks run at once"),
        means("call", "calls the callbacks on every rank"),
        means("launch", "runs the function in this process"),
        means("global_rank", "is this rank's number, which another process may have after a step"),
        means("local_rank node_rank", "is 0 on every rank"),
        means("world_size", "is 1: the batch is the global one, at any number of ranks"),
        means("is_global_zero", "says whether this is rank 0, which may be another process after a step"),
        means("log log_dict", "logs on the first rank alone"),
        means("save", "writes on the first rank alone; checkpoints are Oakum's"),
        means("load", "fills what training begins with: a trainer that goes on has its own state"),
    ),
)

SURFACES = (CONSTRUCTOR, SETUP, SETUP_DATALOADERS, BACKWARD, MEMBERS)
