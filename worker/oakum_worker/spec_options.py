"""Parts of the trainer spec that most trainers leave out: how a step is computed, and how it is kept safe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1, lt=2**31)]
"""How many of something: at least one, and no more than a database's integer holds."""
Precision = Literal["float32", "bfloat16", "float16"]
"""What matrix products are computed in. float32 leaves the model's own types alone."""

AllReduce = Literal["ring", "torus"]
"""How gradients are summed over the ranks."""
BatchNormChoice = Literal["keep", "synchronised", "group"]
"""What becomes of a model's BatchNorm layers."""


PipelineSchedule = Literal[
    "auto", "gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "chimera", "message-driven"
]


class Strict(BaseModel):
    """Takes no field it does not know, and no number that is not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CheckpointSpec(Strict):
    """When checkpoints are taken, and how many are kept."""

    every_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two durable checkpoints."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """How many of the newest durable checkpoints stay on disk."""
    hot_every_steps: Count = 20
    """Steps between two copies in memory, made where no other rank has the whole state: in a neighbour's memory
    for a sharded trainer, in the node's for one that runs on a single node."""


class WarmUpSpec(Strict):
    """The learning rate rises linearly at first, on top of whatever schedule the task has."""

    epochs: Annotated[float, Field(gt=0)]
    """For how long; 0.5 is half an epoch."""
    start: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor of the first step's learning rate."""


class LarsSpec(Strict):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888) of the task's optimizer."""

    trust_coefficient: Annotated[float, Field(gt=0)] = 0.001
    """The eta of the paper's equation 6."""
    clip: bool = False
    """Never raise a layer's learning rate above the optimizer's own (LARC)."""


class AdaptiveBatchSpec(Strict):
    """Let the global batch grow with the gradient noise scale (AdaScale, Johnson et al., arXiv:2007.05105)."""

    largest: Count
    """Samples that one step never exceeds."""
    lr_scaling: Literal["auto", "adascale", "sqrt", "none"] = "auto"
    """The learning rate times the gain, times its square root, or unchanged; `auto`: the root for Adam's kind."""


class PipelineSpec(Strict):
    """The model's layers are spread over the ranks in stages; the task has to name them (`Task.chain`)."""

    stages: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Ranks of a replica that has all layers; fewer while there are fewer ranks. `auto`: what is fastest."""
    schedule: PipelineSchedule = "auto"
    """Who computes what when; `auto`: what is fastest."""
    pipes: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] = 2
    """Ways through the ranks that Chimera has, each with all stages. Two where the ranks are no multiple of it."""
    in_flight: Count | None = None
    """Micro-batches that are on their way at once with `message-driven`. Default: as many as there are stages."""
    micro_batch: Count | None = None
    """Samples that a stage computes at once. Default: `micro_batch` of the spec, or what is fastest."""
    recompute: bool | Literal["auto"] = "auto"
    """Compute activations again for the backward pass instead of keeping them; `auto`: where memory is short."""
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """What one rank may use for weights, optimizer and activations. Default: the device's memory."""

    @model_validator(mode="after")
    def _options_are_those_of_the_schedule(self) -> Self:
        if self.pipes != 2 and self.schedule != "chimera":
            raise ValueError(f"pipes is for schedule: chimera, not {self.schedule}: leave it out")
        if self.pipes != 2 and self.stages != "auto" and self.stages % self.pipes:
            raise ValueError(f"{self.stages} stages do not make {self.pipes} pipes: give a multiple of that")
        if self.schedule == "chimera" and self.stages != "auto" and self.stages % 2:
            raise ValueError(f"{self.stages} stages do not make a chimera: give an even number")
        if self.in_flight is not None and self.schedule != "message-driven":
            raise ValueError(f"in_flight is for schedule: message-driven, not {self.schedule}: leave it out")
        return self


class ParallelSpec(Strict):
    """How ranks share the work of a step."""

    data: Literal["auto", "replicated", "sharded"] = "replicated"
    """Every rank holds the whole state of its layers, or each its part of it (FSDP2). `auto` is `replicated`."""
    pipeline: PipelineSpec | None = None
    """Without one, each rank computes all layers."""
    all_reduce: AllReduce = "ring"
    """Sum gradients of replicated trainers over all ranks at once, or along the rows and columns of a grid, which
    takes fewer steps over many ranks. Where ranks make no grid, as 7 do not, `torus` is `ring`."""
    batch_norm: BatchNormChoice = "keep"
    """Let ranks share the statistics of BatchNorm, or make it GroupNorm, which needs none. As it is, it normalises
    by the samples that a rank computes at once."""
