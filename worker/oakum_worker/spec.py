"""The trainer spec: the one document a user writes, the same in CLI, API and worker."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from oakum_worker.errors import SpecError, reason_of
from oakum_worker.option_rules import SPEC_RULES, refuse_conflicts
from oakum_worker.spec_errors import explain_errors
from oakum_worker.spec_options import (
    AdaptiveBatchSpec,
    AverageSpec,
    CheckpointSpec,
    Count,
    DivergenceSpec,
    EvaluateSpec,
    LarsSpec,
    Notes,
    NotifySpec,
    ParallelSpec,
    Precision,
    SlurmSpec,
    Strict,
    Tags,
    WarmUpSpec,
)
from oakum_worker.spec_text import parse_document

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NODE_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,62}")
_LEAST_SAMPLES_PER_S, _MOST_SAMPLES_PER_S = 1e-12, 1e12
_DEEPEST = 50
_MOST_NODES = 64
_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")


def _rising(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    for nodes, rate in points:
        if not _LEAST_SAMPLES_PER_S <= rate <= _MOST_SAMPLES_PER_S:
            raise ValueError(
                f"the point [{nodes}, {rate}] is not usable: give samples per second from "
                f"{_LEAST_SAMPLES_PER_S:g} to {_MOST_SAMPLES_PER_S:g}"
            )
    for (n0, r0), (n1, r1) in itertools.pairwise(points):
        if n1 <= n0:
            raise ValueError(f"{n1} nodes follow {n0}: list the points in rising order of nodes, each once")
        if r1 <= r0:
            raise ValueError(
                f"{r1:g} samples/s at {n1} nodes is not more than {r0:g} at {n0}: the curve has to rise; "
                f"if more nodes do not help, end the curve at {n0} and set max_nodes to {n0}"
            )
    return points


def _node_type(name: str) -> str:
    if not _NODE_TYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not a node type: expected letters, digits and any of _.:+-, at most 63")
    return name


def _moment(value: object) -> datetime:
    """The point in time, converted to UTC, so that equal moments have equal values. Takes ISO 8601 text or a
    `datetime` with a time zone. Raises `ValueError` for anything else."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{str(value)!r} is not a point in time: expected ISO 8601 with a time zone, such as "
        "2027-03-31T18:00:00+02:00"
    )


Points = Annotated[tuple[tuple[Count, float], ...], AfterValidator(_rising)]
"""Points (nodes, samples per second) of a scalability curve, rising in both."""
NodeType = Annotated[str, AfterValidator(_node_type)]
Moment = Annotated[datetime, BeforeValidator(_moment)]


Sizes = Literal["any", "powers_of_two"] | Annotated[tuple[Count, ...], Field(min_length=1, max_length=1000)]
"""Numbers of nodes, rising, or which numbers these are."""

BatchStage = tuple[Annotated[int, Field(ge=0, lt=2**31)], Count]
"""(epoch, samples): from this epoch on, counted from 0, each step takes this number of samples."""


class TrainerSpec(Strict):
    """What a user submits: how to build the training task, its batches, its numbers of nodes, its value. Making
    one raises pydantic's `ValidationError`, from which `explain` makes a line for each thing to change."""

    name: str
    """Lower-case letters, digits and hyphens; unique among the trainers that have not ended."""
    tags: Tags = ()
    """Words by which the trainer is found and grouped. They and `notes` can be changed at any time, and change
    nothing about training."""
    notes: Notes = ""
    """What people should know of it."""
    entrypoint: str = ""
    """`package.module:function`; the function returns an `oakum_worker.task.Task`."""
    script: str | None = None
    """In place of an entrypoint: a Python file, relative to `workdir`, that trains with `oakum.session`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""
    workdir: str | None = None
    """Folder put first on the import path. The CLI makes it absolute, relative to the spec's own folder."""
    initial: str | None = None
    """File with the model's initial weights: safetensors, or a state dict that `torch.save` wrote (.pt, .pth,
    .bin). Relative to `workdir`. Default: the weights that the entrypoint builds."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Fixes initial weights, data order and every other random choice of the trainer."""
    global_batch: Count
    """Samples of one optimizer step, whatever the number of nodes."""
    micro_batch: Count | None = None
    """Most samples one rank computes at once; larger shares are accumulated. Default: the whole share."""
    epochs: Count
    """Passes over the data set. Each visits every sample exactly once."""
    min_nodes: Count = 1
    max_nodes: Count = _MOST_NODES
    """Default: 64, or fewer where the smallest global batch has less than one sample for each rank."""
    sizes: Sizes = "any"
    """The only numbers of nodes that the trainer is given: a rising list, or `powers_of_two`. `min_nodes` and
    `max_nodes` are then by default the first and the last of them, and have to be among them."""
    curve: Points = ()
    """Scalability curve: (nodes, samples per second), rising in both. Default: linear until measured."""
    curves_by_type: dict[NodeType, Annotated[Points, Field(min_length=1)]] = Field(default_factory=dict)
    """Instead of `curve`, one curve for each type of node; the trainer runs on no other types."""
    mixes_types: bool = False
    """Whether the trainer may run on nodes of several types of `curves_by_type` at once."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Value of this trainer's samples relative to other trainers'."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Trainers of a higher priority choose their nodes first. Only administrators may give a priority above 0."""
    deadline: Moment | None = None
    """When the trainer should have ended, for services that plan by deadlines (`OAKUM_OBJECTIVE=deadline`)."""
    slots_per_fragment: Annotated[int, Field(ge=1, le=64)] | Literal["node", "auto"] = "auto"
    """Where nodes are given in parts: how many slots of one node a fragment has, with a rank for each; `node` for
    all of a node, `auto` for one or several by what foreground jobs take and whether the model is divided. Numbers
    of nodes count slots. A fragment's slots are given back together."""
    ranks_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Rank processes on each node: one per GPU, or one on a CPU node."""
    threads_per_rank: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads torch may use in one rank."""
    workers: Annotated[int, Field(ge=0, le=64)] | None = None
    """Processes of each rank that read samples ahead of the steps. Default: none; a rank reads its samples
    itself."""
    slurm: SlurmSpec = SlurmSpec()
    """QOS, account, constraint and reservation of its jobs, of those that an administrator allows."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    parallel: ParallelSpec = ParallelSpec()
    precision: Precision = "float32"
    """Type of matrix products and convolutions (autocast); weights and optimizer keep theirs."""
    compile: bool = False
    """Compile the model's forward and backward with torch.compile."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the global batch's gradient; a longer one is scaled down to it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing of every cross entropy in the loss that does not smooth labels itself."""
    notify: Annotated[tuple[NotifySpec, ...], Field(max_length=8)] = ()
    """Who is notified of the trainer's end, or of its waiting for long."""
    warm_up: WarmUpSpec | None = None
    lars: LarsSpec | None = None
    ema: AverageSpec | None = None
    """Keep an exponential moving average of the weights."""
    evaluate: EvaluateSpec | None = None
    """When the task is evaluated, which checkpoint is the best, and when training ends early."""
    batch_schedule: tuple[BatchStage, ...] = ()
    """Other global batches for later epochs: (epoch, samples), rising in epochs."""
    adaptive_batch: AdaptiveBatchSpec | None = None
    """Instead of a schedule: `global_batch` is the first and smallest batch."""
    rehearsal: bool = True
    """Try the task on a few samples before training, and refuse a task whose results depend on the number of
    nodes."""
    exact: bool = True
    """Whether results have to be those of one node. With false, what the rehearsal finds is warned of, and the
    trainer is marked for ever as one whose results depend on its nodes."""
    divergence: DivergenceSpec | None = DivergenceSpec()
    """When a trainer counts as diverged and ends; with null it trains on whatever becomes of the loss."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Seconds of one step in the task's code after which a rank counts as hung and is replaced. Waiting for other
    ranks does not count, but a step may take no more than 10 times as long with its waits."""

    @field_validator("name")
    @classmethod
    def _name_is_a_label(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a valid name: use 1 to 63 lower-case letters, digits and hyphens, "
                "beginning and ending with a letter or digit"
            )
        return name

    @field_validator("entrypoint")
    @classmethod
    def _entrypoint_names_a_function(cls, entrypoint: str) -> str:
        if entrypoint and not _ENTRYPOINT.fullmatch(entrypoint):
            hint = "; a script is named by `script`" if entrypoint.endswith(".py") else ""
            raise ValueError(f"{entrypoint!r} is not of the form package.module:function{hint}")
        return entrypoint

    @field_validator("script")
    @classmethod
    def _script_is_a_file_of_python(cls, script: str | None) -> str | None:
        if script is not None and (not script.endswith(".py") or "\0" in script):
            raise ValueError(f"{script!r} is not the name of a Python file: write it as train.py")
        return script

    @field_validator("sizes")
    @classmethod
    def _sizes_rise(cls, sizes: Sizes) -> Sizes:
        for fewer, more in itertools.pairwise(() if isinstance(sizes, str) else sizes):
            if more <= fewer:
                raise ValueError(f"{more} nodes follow {fewer}: list the numbers in rising order, each once")
        return sizes

    @field_validator("initial")
    @classmethod
    def _initial_is_a_file_of_weights(cls, initial: str | None) -> str | None:
        if initial is not None and ("\0" in initial or not initial.endswith(_WEIGHTS)):
            raise ValueError(
                f"{initial!r} is not a file of weights: expected a name that ends in {', '.join(_WEIGHTS)}"
            )
        return initial

    @field_validator("arguments", "workdir", "script", "initial")
    @classmethod
    def _is_json(cls, value: Any) -> Any:
        if _too_deep(value):
            raise ValueError(f"is nested more than {_DEEPEST} levels deep: pass a file's name instead")
        try:
            json.dumps(to_jsonable_python(value), allow_nan=False, ensure_ascii=False).encode()
        except ValueError as error:
            raise ValueError(f"cannot be sent as JSON: {error}: use finite numbers and Unicode text") from error
        return value

    @model_validator(mode="after")
    def _names_the_code(self) -> Self:
        if not self.entrypoint and self.script is None:
            raise ValueError(
                "neither entrypoint nor script is given: name a function (entrypoint: package.module:function) or "
                "a file (script: train.py)"
            )
        return self

    @property
    def code(self) -> str:
        """The code that trains, as the user names it: the entrypoint or the script."""
        return self.script or self.entrypoint

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        refuse_conflicts(self, SPEC_RULES)
        return self

    @model_validator(mode="after")
    def _batches_follow_each_other(self) -> Self:
        for (e0, _), (e1, _) in itertools.pairwise(self.batch_schedule):
            if e1 <= e0:
                raise ValueError(f"batch_schedule: epoch {e1} follows {e0}: list the epochs in rising order")
        if self.adaptive_batch is not None and self.adaptive_batch.largest < self.global_batch:
            raise ValueError(
                f"adaptive_batch.largest {self.adaptive_batch.largest} is below global_batch "
                f"{self.global_batch}, which is the first and smallest one: raise it"
            )
        return self

    @model_validator(mode="after")
    def _pipelines_cut_batches_evenly(self) -> Self:
        pipeline = self.parallel.pipeline
        size = None if pipeline is None else pipeline.micro_batch or self.micro_batch
        for samples in (self.global_batch, *(samples for _, samples in self.batch_schedule)):
            if size is not None and samples % size:
                raise ValueError(
                    f"a batch of {samples} samples cannot be cut into micro-batches of {size}: give a size that "
                    "divides it"
                )
        return self

    @property
    def listed_sizes(self) -> tuple[int, ...]:
        """The numbers of nodes that `sizes` stands for, rising, whatever the bounds are; empty where every number
        will do."""
        if self.sizes == "any":
            return ()
        if self.sizes == "powers_of_two":
            return tuple(2**k for k in range(max(self.max_nodes, self._most_by_batch).bit_length()))
        return self.sizes

    @property
    def allowed_sizes(self) -> tuple[int, ...]:
        """Those of `listed_sizes` that lie within the bounds."""
        return tuple(size for size in self.listed_sizes if self.min_nodes <= size <= self.max_nodes)

    @property
    def _smallest_batch(self) -> int:
        return min([self.global_batch, *(samples for _, samples in self.batch_schedule)])

    @property
    def _most_by_batch(self) -> int:
        """The most nodes on which each rank has a sample of the smallest batch."""
        return max(1, self._smallest_batch // self.ranks_per_node)

    @model_validator(mode="after")
    def _bounds_are_sizes(self) -> Self:
        most = min(self.max_nodes, self._most_by_batch)
        sizes = self.listed_sizes
        if "max_nodes" not in self.model_fields_set:
            if self.sizes == "powers_of_two":
                most = max(size for size in sizes if size <= most)
            object.__setattr__(self, "max_nodes", most if isinstance(self.sizes, str) else sizes[-1])
        if "min_nodes" not in self.model_fields_set and sizes:
            object.__setattr__(self, "min_nodes", sizes[0])
        for name in ("min_nodes", "max_nodes") if sizes else ():
            if (nodes := getattr(self, name)) not in sizes:
                listed = self.sizes if isinstance(self.sizes, str) else ", ".join(map(str, sizes))
                raise ValueError(
                    f"{name} {nodes} is not among sizes ({listed}): give one of these, or leave {name} out"
                )
        return self

    @model_validator(mode="after")
    def _fragments_have_whole_numbers_of_slots(self) -> Self:
        slots = self.slots_per_fragment
        numbers = self.allowed_sizes or range(self.min_nodes, self.max_nodes + 1)
        if isinstance(slots, int) and numbers and not any(number % slots == 0 for number in numbers):
            among = " among sizes" if self.listed_sizes else ""
            raise ValueError(
                f"slots_per_fragment {slots}: no number from min_nodes {self.min_nodes} to max_nodes "
                f"{self.max_nodes}{among} is a multiple of {slots}: such numbers count slots, and each fragment "
                f"has {slots}"
            )
        return self

    @model_validator(mode="after")
    def _batches_are_enough(self) -> Self:
        smallest = self._smallest_batch
        if self.min_nodes > self.max_nodes:
            raise ValueError(
                f"min_nodes {self.min_nodes} is above max_nodes {self.max_nodes}: "
                "lower min_nodes or raise max_nodes"
            )
        if smallest < self.max_nodes * self.ranks_per_node:
            which = "global_batch" if smallest == self.global_batch else "batch_schedule's smallest batch"
            raise ValueError(
                f"{which} {smallest} gives {self.max_nodes * self.ranks_per_node} ranks "
                "less than one sample each: raise it or lower max_nodes"
            )
        return self


def read_spec(path: Path) -> TrainerSpec:
    """Read a trainer spec from a YAML or JSON file; a relative `workdir` counts from the file's folder and is made
    absolute. Raises `SpecError` with the file's name and one line for each thing to change."""
    try:
        document = parse_document(path.read_text(encoding="utf-8"))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is neither YAML nor JSON: {reason_of(error)}") from error
    workdir = document.get("workdir", ".")
    if isinstance(workdir, str) and "\0" not in workdir:
        document["workdir"] = str((path.resolve().parent / workdir).resolve())
    try:
        return TrainerSpec.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{path}:\n" + "\n".join(f"  {line}" for line in explain(error))) from error


def explain(error: ValidationError) -> list[str]:
    """One line for each fault of a spec: the field, what is wrong with it, and what to do."""
    return explain_errors(error, TrainerSpec)


def _too_deep(value: object) -> bool:
    """Whether lists and mappings are nested deeper than every JSON writer can write."""
    level = [value]
    for _ in range(_DEEPEST):
        # By identity: YAML's aliases can repeat a part without end.
        level = list({id(part): part for whole in level for part in _parts(whole)}.values())
    return bool(level)


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []
