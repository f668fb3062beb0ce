"""The trainer spec: the one document a user writes, the same in CLI, API and worker."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python
from yaml.composer import ComposerError

from oakum_worker.errors import SpecError
from oakum_worker.spec_options import (
    AdaptiveBatchSpec,
    CheckpointSpec,
    Count,
    LarsSpec,
    ParallelSpec,
    Precision,
    Strict,
    WarmUpSpec,
)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NODE_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,62}")
_MOST_SAMPLES_PER_S = 1e12
_DEEPEST = 50


def _rising(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    for nodes, rate in points:
        if not 0 < rate <= _MOST_SAMPLES_PER_S:
            raise ValueError(
                f"the point [{nodes}, {rate}] is not usable: give samples per second above 0 and "
                f"up to {_MOST_SAMPLES_PER_S:g}"
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
    """Kept in UTC: one form for every offset that it may be written in."""
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
"""(nodes, samples per second), rising in both."""
NodeType = Annotated[str, AfterValidator(_node_type)]
Moment = Annotated[datetime, BeforeValidator(_moment)]


BatchStage = tuple[Annotated[int, Field(ge=0, lt=2**31)], Count]
"""(epoch, samples): from that epoch on a step takes so many samples; epochs count from 0."""


class TrainerSpec(Strict):
    """What a user submits: how to build the training task, its batch, its sizes, its value.

    Raises pydantic's `ValidationError` with one readable line for each thing to change.
    """

    name: str
    """Lower-case letters, digits and hyphens; unique among the trainers that have not ended."""
    entrypoint: str
    """`package.module:function`; the function returns an `oakum_worker.task.Task`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""
    workdir: str | None = None
    """Folder put first on the import path. The CLI makes it absolute, relative to the spec's own folder."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Fixes initial weights, data order and every other random choice of the trainer."""
    global_batch: Count
    """Samples of one optimizer step, whatever the number of nodes."""
    micro_batch: Count | None = None
    """Most samples one rank computes at once; larger shares are accumulated. Default: the whole share."""
    epochs: Count
    """Passes over the data set. Each visits every sample exactly once."""
    min_nodes: Count = 1
    max_nodes: Count = 64
    """Where it is not given, it is lowered to what `global_batch` allows: one sample for each rank."""
    curve: Points = ()
    """Scalability curve: (nodes, samples per second), rising in both. Default: linear until measured."""
    curves_by_type: dict[NodeType, Annotated[Points, Field(min_length=1)]] = Field(default_factory=dict)
    """Instead of `curve`, one for each type of node that the trainer runs on; it runs on no other."""
    mixes_types: bool = False
    """Whether it may run on nodes of several of these types at once."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Value of this trainer's samples relative to other trainers'."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Trainers of a higher priority choose their nodes first. Above 0 it is the administrators' to give."""
    deadline: Moment | None = None
    """When it should have ended, for plans that ask for it: `OAKUM_OBJECTIVE=deadline`."""
    ranks_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Rank processes on each node: one per GPU, or one on a CPU node."""
    threads_per_rank: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads torch may use in one rank."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    parallel: ParallelSpec = ParallelSpec()
    precision: Precision = "float32"
    """Type of matrix products and convolutions (autocast); weights and optimizer keep theirs."""
    compile: bool = False
    """Compile the model's forward and backward with torch.compile."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the global batch's gradient; a longer one is scaled down to it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """For every cross entropy of the loss that does not smooth labels itself."""
    warm_up: WarmUpSpec | None = None
    lars: LarsSpec | None = None
    batch_schedule: tuple[BatchStage, ...] = ()
    """Other global batches for later epochs: (epoch, samples), rising in epochs."""
    adaptive_batch: AdaptiveBatchSpec | None = None
    """Instead of a schedule: `global_batch` is the first and smallest batch."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """A rank that is longer at one step, in the task's code, is taken for hung and replaced. Where it waits for
    other ranks in there, as ranks of a sharded trainer do, that does not count."""

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
        if not _ENTRYPOINT.fullmatch(entrypoint):
            raise ValueError(f"{entrypoint!r} is not of the form package.module:function")
        return entrypoint

    @field_validator("arguments", "workdir")
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
    def _curves_are_one_thing_or_the_other(self) -> Self:
        if self.curve and self.curves_by_type:
            raise ValueError("curve and curves_by_type are both given: leave out one of them")
        if self.mixes_types and not self.curves_by_type:
            raise ValueError("mixes_types says nothing without curves_by_type: add these or leave it out")
        return self

    @model_validator(mode="after")
    def _synchronised_norms_do_without(self) -> Self:
        others = {
            "compile": self.compile,
            "adaptive_batch": self.adaptive_batch,
            "parallel.data: sharded": self.parallel.data == "sharded",
            "parallel.pipeline": self.parallel.pipeline is not None,
        }
        for name, given in others.items():
            if given and self.parallel.batch_norm == "synchronised":
                raise ValueError(
                    f"{name} does not go with parallel.batch_norm: synchronised: leave out one of them, or use "
                    "batch_norm: group"
                )
        return self

    @model_validator(mode="after")
    def _batches_are_one_thing_or_the_other(self) -> Self:
        if self.batch_schedule and self.adaptive_batch:
            raise ValueError("batch_schedule and adaptive_batch are both given: leave out one of them")
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
    def _sharded_trainers_do_without(self) -> Self:
        if self.parallel.data == "sharded":
            others = {
                "compile": self.compile,
                "adaptive_batch": self.adaptive_batch,
                "parallel.all_reduce: torus": self.parallel.all_reduce == "torus",
            }
            for name, given in others.items():
                if given:
                    raise ValueError(f"{name} is for replicated trainers: leave it out, or parallel.data: sharded")
        return self

    @model_validator(mode="after")
    def _pipelines_do_without(self) -> Self:
        pipeline = self.parallel.pipeline
        if pipeline is None:
            return self
        others = {
            "compile": self.compile,
            "adaptive_batch": self.adaptive_batch,
            "parallel.data: sharded": self.parallel.data == "sharded",
            "parallel.all_reduce: torus": self.parallel.all_reduce == "torus",
            "precision: float16": self.precision == "float16",
        }
        for name, given in others.items():
            if given:
                raise ValueError(f"{name} does not go with parallel.pipeline: leave out one of them")
        size = pipeline.micro_batch or self.micro_batch
        for samples in (self.global_batch, *(samples for _, samples in self.batch_schedule)):
            if size is not None and samples % size:
                raise ValueError(
                    f"a batch of {samples} samples cannot be cut into micro-batches of {size}: give a size that "
                    "divides it"
                )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        smallest = min([self.global_batch, *(samples for _, samples in self.batch_schedule)])
        most = max(1, smallest // self.ranks_per_node)
        if "max_nodes" not in self.model_fields_set and self.max_nodes > most:
            object.__setattr__(self, "max_nodes", most)
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


class _Loader(yaml.SafeLoader):
    """Takes no aliases: a few lines of them stand for more than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias = self.get_event()
            problem = f"*{alias.anchor} is an alias: write the value out"
            raise ComposerError(None, None, problem, alias.start_mark)
        return super().compose_node(parent, index)


def read_spec(path: Path) -> TrainerSpec:
    """The spec in a YAML or JSON file, `workdir` made absolute relative to the file's folder.

    Raises `SpecError` with the file's name and one line for each thing to change.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise SpecError(f"{path}: is nested too deep: pass a file's name instead") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # All but the first come from values that are not what their form or tag says, such as the date 2026-13-99.
        raise SpecError(f"{path}: is neither YAML nor JSON: {error}") from error
    if not isinstance(document, dict):
        raise SpecError(f"{path}: expected a mapping of fields such as 'name:' and 'entrypoint:'")
    workdir = document.get("workdir", ".")
    if isinstance(workdir, str) and "\0" not in workdir:
        document["workdir"] = str((path.resolve().parent / workdir).resolve())
    try:
        return TrainerSpec.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{path}:\n" + "\n".join(f"  {line}" for line in explain(error))) from error


def explain(error: ValidationError) -> list[str]:
    """One line for each thing that is wrong with a spec: where, what, and what to do."""
    return [_explain_one(dict(item)) for item in error.errors()]


def _explain_one(item: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "spec"
    if item["type"] == "extra_forbidden":
        known = ", ".join(_fields_at(item["loc"][:-1]))
        return f"{where}: unknown field; remove it or use one of: {known}"
    if item["type"] == "missing":
        return f"{where}: required and not given"
    return f"{where}: {item['msg'].removeprefix('Value error, ')}"


def _fields_at(location: Sequence[int | str]) -> list[str]:
    """The fields of the spec, or of the part of it at that location."""
    model: type[BaseModel] = TrainerSpec
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        choices = get_args(annotation) or (annotation,)  # a part that may be left out is one of two types
        model = next(kind for kind in choices if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)


def _too_deep(value: object) -> bool:
    """Whether lists and mappings are nested beyond what every JSON writer takes."""
    level = [value]
    for _ in range(_DEEPEST):
        # By identity: YAML's aliases can repeat a part without end.
        level = list({id(part): part for whole in level for part in _parts(whole)}.values())
    return bool(level)


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []
