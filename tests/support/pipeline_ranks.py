"""Small models as chains of layers, and the ranks of a pipeline as threads of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from operator import methodcaller
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from oakum_worker.chain import Chain
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.gradients import StageGradients
from oakum_worker.parallel.pipeline.links import PeerLinks, pairs_of
from oakum_worker.parallel.pipeline.message_driven import MessageDrivenEngine
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.partition import partition
from oakum_worker.parallel.pipeline.scheduled import ScheduledEngine
from oakum_worker.parallel.pipeline.stages import parameters_of
from oakum_worker.parallel.subgroups import StoreSubgroups, Subgroups
from oakum_worker.randomness.counters import mix
from oakum_worker.randomness.sample_randomness import SampleRandomness
from rank_threads import RankThreads
from turns import in_turns
from waiting import DEADLINE_S

torch.set_num_threads(1)

STAND_IN = "TESTS_ON_STAND_IN"
"""Environment variable of a process that may compute on what stands in for GPUs (`test_over_stand_in`)."""
CPU = torch.device("cpu")
NUM_WORDS, LENGTH, WIDTH = 11, 6, 16
R = TypeVar("R")
_GENERATOR = threading.Lock()  # threads share torch's


class Embedding(nn.Module):
    """Embeds tokens of shape (samples, length) as the sum of a token vector and a position vector."""

    def __init__(self, weight: nn.Parameter, dropout: float) -> None:
        super().__init__()
        self.weight = weight
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.dropout(F.embedding(tokens, self.weight) + self.places)


class Head(nn.Module):
    """Maps vectors to logits by the embedding's weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(values), self.weight)


def build_transformer(num_layers: int = 8, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Chain:
    """Embedding, blocks and a head that is tied to the embedding."""
    torch.manual_seed(5)
    weight = nn.Parameter(0.3 * torch.randn(NUM_WORDS, WIDTH))
    blocks = [
        nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout, batch_first=True, norm_first=True)
        for _ in range(num_layers)
    ]
    layers = nn.ModuleList([Embedding(weight, dropout), *blocks, Head(weight)]).to(dtype)
    return Chain(layers=layers, inputs=lambda batch: batch[:, :-1], loss=next_word_loss)


def next_word_loss(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def sentences(num_samples: int, step: int = 0) -> torch.Tensor:
    """Tokens, shape (samples, length + 1)."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(NUM_WORDS, (num_samples, LENGTH + 1), generator=generator)


@dataclass
class Share:
    """Micro-batches of some consecutive samples of a global batch (an engine's `MicroBatches`)."""

    chain: Chain
    batch: Any
    """The global one."""
    parts: Sequence[range]
    """The samples of each micro-batch."""
    key: int = 0
    """Stands for the step."""
    randomness: SampleRandomness | None = None
    device: torch.device = CPU
    losses: dict[int, float] = field(default_factory=dict)

    def num_samples(self, number: int) -> int:
        return len(self.parts[number])

    def prepare(self, number: int) -> None:
        pass

    def forget(self, number: int) -> None:
        pass

    def inputs(self, number: int) -> Any:
        return self.chain.inputs(self._batch(number))

    def loss(self, output: Any, number: int) -> torch.Tensor:
        loss = self.chain.end(output, self._batch(number)) * (len(self.parts[number]) / len(self.batch))
        self.losses[number] = loss.item()
        return loss

    @contextmanager
    def drawing(self, number: int) -> Iterator[Callable[..., Any]]:
        if self.randomness is None:
            yield lambda function, *arguments: function(*arguments)
            return
        part = self.parts[number]
        # Within it a stage computes and waits for nobody.
        with _GENERATOR, self.randomness.samples(self.key, part.start, len(part)) as call:
            yield call

    def _batch(self, number: int) -> Any:
        part = self.parts[number]
        return self.batch[part.start : part.stop].to(self.device)


def consecutive(sizes: Sequence[int]) -> list[range]:
    """Consecutive samples cut into micro-batches of these sizes."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@dataclass(frozen=True)
class Training:
    """A few steps of Adam, on one process or on several in a pipeline."""

    build: Callable[[], Chain] = build_transformer
    sizes: tuple[int, ...] = (2,) * 4
    """Of all replicas' micro-batches; each replica has equally many of them."""
    num_steps: int = 1
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    lr: float = 0.01
    draws: bool = False
    batch: Callable[[int, int], Any] = sentences
    """Of so many samples, for a step."""

    def shares(self, chain: Chain, replica: int, num_replicas: int, device: torch.device = CPU) -> Iterator[Share]:
        """A replica's, step by step."""
        parts = consecutive(self.sizes)
        count = len(parts) // num_replicas
        randomness = SampleRandomness(device, always=True) if self.draws else None
        for step in range(self.num_steps):
            batch = self.batch(sum(self.sizes), step)
            own = parts[replica * count : (replica + 1) * count]
            yield Share(chain, batch, own, key=mix(9, step), randomness=randomness, device=device)


DROPPING = Training(partial(build_transformer, dropout=0.2), sizes=(1,) * 8, num_steps=20, draws=True)


@dataclass(frozen=True)
class Pipeline:
    """How a training is spread over ranks."""

    schedule: Schedule
    num_replicas: int = 1
    recompute: bool = False
    message_driven: bool = False
    cuts: tuple[range, ...] | None = None
    kind: str = "cpu"
    """Of the ranks' devices. Each rank has one of its own, except on the CPU."""

    def device_of(self, rank: int) -> torch.device:
        return torch.device(self.kind, rank if self.kind == "cuda" else 0) if self.kind != "cpu" else CPU

    def cut(self, chain: Chain) -> tuple[range, ...]:
        return self.cuts or partition([1.0] * len(chain.layers), self.schedule.num_stages)

    @property
    def world_size(self) -> int:
        return self.schedule.num_workers * self.num_replicas


@dataclass
class Outcome:
    """One rank's weights, gradients and losses after training."""

    weights: dict[str, torch.Tensor]
    """Those of its stages, by "layer.parameter"."""
    gradients: dict[str, torch.Tensor]
    """Of the last step."""
    losses: list[float]
    """Its part of each step's."""
    max_live: int
    trace: list[tuple[str, int]]
    """In the last step: an operation's kind or "sync" or "all-reduce", and its stage."""


class Rank:
    """One rank of a pipeline."""

    def __init__(self, pipeline: Pipeline, chain: Chain, rank: int, subgroups: Subgroups) -> None:
        schedule = pipeline.schedule
        self.chain, self.trace = chain, []  # type: ignore[var-annotated]
        self.replica, self.worker = divmod(rank, schedule.num_workers)
        cuts = pipeline.cut(chain)
        arrangement = Arrangement(pipeline.world_size, pipeline.num_replicas, schedule, cuts)
        row = arrangement.ranks_of(self.replica)
        self.links = PeerLinks(subgroups, row, self.worker, pairs_of(schedule), pipeline.device_of(rank))
        holders = [arrangement.holders_of(stage) for stage in range(schedule.num_stages)]
        self.gradients = StageGradients(chain, cuts, holders, rank, subgroups)
        arguments = self.worker, chain, cuts, self.links, self._sync
        options: Any = {"recompute": pipeline.recompute, "observe": self._observe}
        make = MessageDrivenEngine if pipeline.message_driven else ScheduledEngine
        self.engine: Any = make(schedule, *arguments, **options)
        self.layers = sorted({layer for _, stage in schedule.stages_of(self.worker) for layer in cuts[stage]})

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of this rank's stages, by "layer.parameter"."""
        return named_parameters(self.chain, self.layers)

    def step(self, share: Share) -> None:
        """Compute the gradients of a step."""
        self.trace.clear()
        self.gradients.begin()
        self.engine.run(share)
        self.gradients.finish()

    def _sync(self, stage: int) -> None:
        self.gradients.sync(stage)
        self.trace.append(("all-reduce", stage))

    def _observe(self, operation: Operation, begin_s: float, end_s: float) -> None:
        if operation.kind != Kind.SYNC:
            self.trace.append((operation.kind.value, operation.stage))


def named_parameters(chain: Chain, layers: Sequence[int]) -> dict[str, nn.Parameter]:
    """The layers' parameters by "layer.parameter"."""
    return {f"{layer}.{name}": p for layer in layers for name, p in chain.layers[layer].named_parameters()}


def take_part(pipeline: Pipeline, training: Training, rank: int, subgroups: Subgroups) -> Outcome:
    """Train as one rank."""
    with _GENERATOR:
        chain = training.build()
    device = pipeline.device_of(rank)
    move = move_to_stand_in if pipeline.kind == "stand_in" else methodcaller("to", device)
    for layer in chain.layers:
        move(layer)
    member = Rank(pipeline, chain, rank, subgroups)
    optimizer = training.optimizer(member.gradients.parameters, lr=training.lr)
    losses = []
    for share in training.shares(chain, member.replica, pipeline.num_replicas, device):
        member.step(share)
        optimizer.step()
        losses.append(sum(share.losses.values()))
    named = member.parameters()
    return Outcome(
        {name: p.detach().cpu() for name, p in named.items()},
        {name: p.grad.cpu() for name, p in named.items() if p.grad is not None},
        losses,
        member.engine.max_live,
        member.trace,
    )


def train_alone(training: Training) -> Outcome:
    """Train in one process, micro-batch by micro-batch, as a reference."""
    chain = training.build()
    named = named_parameters(chain, range(len(chain.layers)))
    parameters = parameters_of(chain, range(len(chain.layers)))
    optimizer = training.optimizer(parameters, lr=training.lr)
    losses = []
    for share in training.shares(chain, 0, 1):
        optimizer.zero_grad()
        for number in range(len(share.parts)):
            with share.drawing(number) as call:
                loss = call(
                    lambda number=number, share=share: share.loss(
                        chain.run(range(len(chain.layers)), share.inputs(number)), number
                    )
                )
                loss.backward()
        optimizer.step()
        losses.append(sum(share.losses.values()))
    weights = {name: p.detach() for name, p in named.items()}
    gradients = {name: p.grad for name, p in named.items() if p.grad is not None}
    return Outcome(weights, gradients, losses, 0, [])


train_once_alone = lru_cache(train_alone)


def train_in_threads(pipeline: Pipeline, training: Training) -> list[Outcome]:
    """Train a pipeline with one thread for each rank; returns the outcome of each rank."""
    return in_threads(
        pipeline.world_size, lambda rank, groups: take_part(pipeline, training, rank, groups), pipeline.kind
    )


def train_in_memory(pipeline: Pipeline, training: Training) -> list[Outcome]:
    """As `train_in_threads`, by ranks that take turns and whose links and groups are in memory."""
    return in_turns(pipeline.world_size, lambda rank, groups: take_part(pipeline, training, rank, groups))


def in_threads(world_size: int, function: Callable[[int, StoreSubgroups], R], kind: str = "cpu") -> list[R]:
    """Run `function(rank, subgroups)` in one thread for each rank of a generation; returns each rank's result.
    `kind` is that of the ranks' devices.

    All groups stay until all ranks have returned: a rank may return while another one still connects to it."""
    store = dist.HashStore()
    subgroups = [meeting_at(store, rank, on_gpus=kind != "cpu") for rank in range(world_size)]

    def as_rank(rank: int) -> R:
        if kind == "cuda":
            torch.cuda.set_device(rank)
        with device_stand_in(kind, rank):
            return function(rank, subgroups[rank])

    with nccl_stand_in(kind):
        return RankThreads(as_rank, range(world_size)).results()


def device_stand_in(kind: str, place: int) -> AbstractContextManager[Any]:
    """Context in which this thread has a device of its own, where that is to be what stands in for a GPU. torch is
    told of it as late as here: it is told for good."""
    if kind != "stand_in":
        return nullcontext()
    from gpu_stand_in import at

    return at(place)


def move_to_stand_in(module: nn.Module) -> None:
    """Move the module's parameters to the device that stands in for a GPU."""
    from gpu_stand_in import move

    move(module)


def nccl_stand_in(kind: str) -> AbstractContextManager[Any]:
    """Context in which this process forms groups of what stands in for NCCL, on such devices."""
    if kind != "stand_in":
        return nullcontext()
    from nccl_stand_in import in_place_of_nccl

    return in_place_of_nccl()


def die_once(others_have_formed: threading.Event, subgroups: StoreSubgroups) -> None:
    """Lose the rank that this thread stands for: close its connections, as the end of a process would.

    Waits until `others_have_formed` is set, since the other ranks cannot form their groups without this one. Fails
    if that takes longer than `DEADLINE_S`. `subgroups` are this rank's own.
    """
    assert others_have_formed.wait(DEADLINE_S)
    subgroups.formed.clear()


def meeting_at(store: dist.Store, rank: int, name: str = "", *, on_gpus: bool = False) -> StoreSubgroups:
    """The subgroups of the generation `name`, whose ranks meet at `store`."""
    return StoreSubgroups(dist.PrefixStore(name, store), rank, timedelta(seconds=DEADLINE_S), on_gpus=on_gpus)
