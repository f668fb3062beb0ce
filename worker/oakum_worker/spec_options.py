"""Parts of the trainer spec that most trainers leave out: how a step is computed, and how it is kept safe."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from oakum_worker.option_rules import EVALUATE_RULES, PIPELINE_RULES, TENSOR_RULES, refuse_conflicts
from oakum_worker.schedule_table import WITH_PIPES, PipelineSchedule
from oakum_worker.strategy_table import data_choices

Count = Annotated[int, Field(ge=1, lt=2**31)]
"""A number of things: at least 1, and no more than a database's integer holds."""
Precision = Literal["float32", "bfloat16", "float16"]
"""Type of matrix products. float32 leaves the model's own types alone."""

AllReduce = Literal["ring", "torus"]
"""How gradients are summed over the ranks."""
BatchNormChoice = Literal["keep", "synchronised", "group"]
"""What becomes of a model's BatchNorm layers."""


NoticeEvent = Literal["finished", "failed", "diverged", "cancelled", "starved"]
"""What may happen to a trainer that its user can be notified of."""
_MAIL_ADDRESS = re.compile(
    r"[A-Za-z0-9_+][A-Za-z0-9._%+=-]{0,63}@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*"
)


_TAG = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that cannot be seen, but for tabs and ends of lines, or that turn others round."""
_MOST_TAGS, _LONGEST_NOTES = 16, 4000


def _tag(text: str) -> str:
    if not _TAG.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} is not a valid tag: use 1 to 40 lower-case letters, digits and hyphens, beginning and "
            "ending with a letter or digit"
        )
    return text


def _each_once(tags: tuple[str, ...]) -> tuple[str, ...]:
    for tag in tags:
        if tags.count(tag) > 1:
            raise ValueError(f"{tag!r} is given twice: list each tag once")
    return tags


def _seen(text: str) -> str:
    text = text.replace("\r\n", "\n")
    if (found := _UNSEEN.search(text)) is not None:
        character = f"U+{ord(found[0]):04X} at character {found.start()}"
        raise ValueError(f"{character} cannot be seen, or turns others round: leave it out")
    return text


Tag = Annotated[str, AfterValidator(_tag)]
Tags = Annotated[tuple[Tag, ...], Field(max_length=_MOST_TAGS), AfterValidator(_each_once)]
Notes = Annotated[str, Field(max_length=_LONGEST_NOTES), AfterValidator(_seen)]


class Strict(BaseModel):
    """Base class of the spec's parts: refuses unknown fields and numbers that are not finite, and cannot be
    changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,127}$")]
"""A name of Slurm's, as `sbatch` takes it."""


_FEATURE = r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*"
_CONSTRAINT = re.compile(rf"{_FEATURE}((&{_FEATURE})*|(\|{_FEATURE})*)")


class SlurmSpec(Strict):
    """What the trainer's jobs ask Slurm for in place of what the service asks for by itself. An administrator
    lists the names that are allowed."""

    qos: SlurmName | None = None
    account: SlurmName | None = None
    constraint: Annotated[str, Field(max_length=500)] | None = None
    """Features of the nodes that it is given: `a&b`, all of them, or `a|b`, any."""
    reservation: SlurmName | None = None
    """Reservation whose nodes it is given, and no others, while it lasts."""

    @field_validator("constraint")
    @classmethod
    def _constraint_is_one_kind(cls, constraint: str | None) -> str | None:
        if constraint is not None and not _CONSTRAINT.fullmatch(constraint):
            raise ValueError(
                f"{constraint!r} is not a constraint that Oakum plans with: give a feature, or several joined by "
                "& or by |, not both"
            )
        return constraint

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the constraint names."""
        return () if self.constraint is None else tuple(re.split(r"[&|]", self.constraint))

    def admits(self, features: Collection[str], reservation: str) -> bool:
        """Whether the trainer may have a node with these features in this reservation; the text is empty where the
        node is in none."""
        if reservation != (self.reservation or ""):
            return False
        offered = [feature in features for feature in self.features]
        return any(offered) if "|" in (self.constraint or "") else all(offered)


class NotifySpec(Strict):
    """Who is notified of what happens to the trainer: a webhook or an e-mail address."""

    webhook: Annotated[str, Field(max_length=2000)] | None = None
    """URL that a JSON document is posted to."""
    email: Annotated[str, Field(max_length=254)] | None = None
    on: Annotated[tuple[NoticeEvent, ...], Field(min_length=1)] = ("finished", "failed", "diverged", "starved")
    """Events to notify of. A trainer is starved when it waits for long although nodes are idle."""

    @model_validator(mode="before")
    @classmethod
    def _as_yaml_reads_it(cls, given: Any) -> Any:
        """Accept the key True in place of `on`, because YAML reads an unquoted `on` as the value true."""
        if isinstance(given, dict) and True in given and "on" not in given:
            return {("on" if key is True else key): value for key, value in given.items()}
        return given

    @field_validator("webhook")
    @classmethod
    def _is_a_web_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_one = False
        if not is_one or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("is no web address: write it as https://hooks.example.org/path")
        if parts.username is not None or parts.fragment:
            raise ValueError("has a user name or a fragment in it: leave these out")
        return url

    @field_validator("email")
    @classmethod
    def _is_a_mail_address(cls, address: str | None) -> str | None:
        if address is not None and _MAIL_ADDRESS.fullmatch(address) is None:
            raise ValueError("is no mail address: write one, as ada@example.org")
        return address

    @model_validator(mode="after")
    def _is_one_thing_or_the_other(self) -> Self:
        if (self.webhook is None) == (self.email is None):
            raise ValueError("give webhook or email, one of them; another entry can have the other")
        return self

    @property
    def recipient(self) -> tuple[str, str]:
        """(channel, address): the channel is `webhook` or `email`."""
        return ("webhook", self.webhook) if self.webhook is not None else ("email", self.email or "")

    @property
    def shown(self) -> Self:
        """The notice as users other than its owner see it: a webhook's path is left out, since whoever knows the
        path can post there."""
        if self.webhook is None:
            return self
        return self.model_copy(update={"webhook": shown_target("webhook", self.webhook)})


def shown_target(channel: str, target: str) -> str:
    """The address of a notice in a form for logs and listings: a webhook without its path, which is as secret as a
    password; an e-mail address as it is."""
    if channel != "webhook":
        return target
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}/..."


class CheckpointSpec(Strict):
    """When checkpoints are taken, and how many are kept."""

    every_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two durable checkpoints."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """How many of the newest durable checkpoints stay on disk."""
    hot_every_steps: Count = 20
    """Steps between two copies of the state in memory. A sharded trainer's rank copies its part to a neighbouring
    rank; a trainer on a single node copies its state to the node's memory."""


class DivergenceSpec(Strict):
    """When a trainer counts as diverged. It then ends, and its newest good checkpoint stays."""

    steps: Count = 5
    """Consecutive steps with an infinite or NaN loss, gradient or weight after which the trainer ends."""


class WarmUpSpec(Strict):
    """The learning rate rises linearly at first, on top of whatever schedule the task has."""

    epochs: Annotated[float, Field(gt=0)]
    """Length of the rise in epochs, such as 0.5."""
    start: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor by which the first step's learning rate is multiplied."""


class LarsSpec(Strict):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888) of the task's optimizer."""

    trust_coefficient: Annotated[float, Field(gt=0)] = 0.001
    """The eta of the paper's equation 6."""
    clip: bool = False
    """Never raise a layer's learning rate above the optimizer's own (LARC)."""


class AverageSpec(Strict):
    """An exponential moving average of the weights, kept beside them."""

    decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Share of itself that the average keeps in each step; it covers about the last 1 / (1 - decay) steps."""
    evaluate: bool = True
    """Whether `evaluate` is given the average in place of the weights."""


class EvaluateSpec(Strict):
    """When the task is evaluated, which checkpoint is kept as the best, and when training ends early."""

    every_steps: Count | None = None
    """Steps between two evaluations. The last step is always followed by one."""
    every_epochs: Count | None = None
    """Epochs between two evaluations. Default, without `every_steps`: what the task says, or 1."""
    keep_best: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Name of the metric by which the best checkpoint is kept, beside the newest ones."""
    mode: Literal["min", "max"] = "min"
    """Whether smaller (`min`) or larger (`max`) values of the metric are better."""
    patience: Count | None = None
    """Evaluations in a row without a better value after which training ends. Default: it ends with the last
    epoch."""

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        refuse_conflicts(self, EVALUATE_RULES)
        return self


class AdaptiveBatchSpec(Strict):
    """Let the global batch grow with the gradient noise scale (AdaScale, Johnson et al., arXiv:2007.05105)."""

    largest: Count
    """The most samples of one step."""
    lr_scaling: Literal["auto", "adascale", "sqrt", "none"] = "auto"
    """`adascale` multiplies the learning rate by the gain, `sqrt` by the gain's square root, `none` leaves it
    unchanged. `auto` is `adascale` for SGD and `sqrt` for other optimizers."""


class PipelineSpec(Strict):
    """The model's layers are spread over the ranks in stages; the task has to name its layers (`Task.chain`)."""

    stages: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Ranks that share one replica's layers; fewer while there are fewer ranks. `auto`: the fastest number."""
    schedule: PipelineSchedule = "auto"
    """The order in which stages compute micro-batches; `auto`: the fastest schedule."""
    pipes: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] = 2
    """Number of Chimera's pipes, each of which goes through all stages. Two while the number of a replica's ranks
    is no multiple of `pipes`."""
    in_flight: Count | None = None
    """Micro-batches in flight at once with `message-driven`. Default: the number of stages."""
    micro_batch: Count | None = None
    """Samples that a stage computes at once. Default: `micro_batch` of the spec, or the fastest size."""
    recompute: bool | Literal["auto"] = "auto"
    """Compute activations again for the backward pass instead of keeping them; `auto`: where memory is short."""
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """Bytes that one rank may use for weights, optimizer and activations. Default: the device's memory."""

    @model_validator(mode="after")
    def _options_are_those_of_the_schedule(self) -> Self:
        refuse_conflicts(self, PIPELINE_RULES)
        if self.pipes != 2 and self.stages != "auto" and self.stages % self.pipes:
            raise ValueError(f"{self.stages} stages do not make {self.pipes} pipes: give a multiple of that")
        if self.schedule in WITH_PIPES and self.stages != "auto" and self.stages % 2:
            raise ValueError(f"{self.stages} stages do not make a {self.schedule}: give an even number")
        return self


Side = Annotated[int, Field(ge=2, le=16)]
"""Ranks along one side of a square or a cube of ranks."""


class TensorSpec(Strict):
    """Each matrix of the model is divided over a grid of ranks, which compute each product together. Several grids
    are replicas. Without a field the fastest grid is taken."""

    cube: Side | None = None
    """Side q of a cube of q^3 ranks, in each of which a rank holds 1/q^3 of the weights (arXiv:2105.14450)."""
    square: Side | None = None
    """Side q of a square of q^2 ranks (SUMMA, as in arXiv:2104.05343)."""
    line: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Ranks in a line, which divide the columns of one matrix and the rows of the next (arXiv:1909.08053)."""
    shards: Annotated[int, Field(ge=2, le=4096)] | None = None
    """Ranks that divide the samples, each with a shard of every matrix; for a product a rank gathers the matrix
    (arXiv:1910.02054)."""
    keep_gathered: bool = False
    """Keep what ranks gather of each other in the forward pass for the backward pass, which needs more memory,
    instead of gathering it again."""
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """Bytes that one rank may use for weights, optimizer and activations. Default: the device's memory."""

    @model_validator(mode="after")
    def _is_one_grid(self) -> Self:
        refuse_conflicts(self, TENSOR_RULES)
        return self


if TYPE_CHECKING:
    DataChoice = str
else:
    DataChoice = Literal["auto", "replicated", *data_choices()]


class ParallelSpec(Strict):
    """How ranks share the work of a step."""

    data: DataChoice = "replicated"
    """`replicated`: each rank holds the whole state of its layers, and computes a share of each batch; `auto` is
    `replicated`. Any other value is that of a strategy in `strategy_table`."""
    pipeline: PipelineSpec | None = None
    """How the model's layers are spread over the ranks in stages; with None each rank computes all layers."""
    tensor: TensorSpec | None = None
    """How each of the model's matrices is divided over a grid of ranks; with None each rank has whole matrices."""
    all_reduce: AllReduce = "ring"
    """`ring` sums the gradients of replicated trainers over all ranks at once. `torus` sums them along the rows
    and columns of a grid of ranks, which takes fewer steps over many ranks; where ranks form no grid, as 7 ranks
    do not, `torus` is `ring`."""
    batch_norm: BatchNormChoice = "keep"
    """`keep` leaves BatchNorm, which then normalises by the samples that one rank computes at once. `synchronised`
    shares its statistics among the ranks. `group` replaces it by GroupNorm, which has no such statistics."""
