"""How the state of a sharded trainer outlives generations: no rank has it all.

**Planned changes** lose nothing. At the step boundary that all have agreed on, ranks that leave hand their rows to
those that stay, evenly; in the next generation everybody is sent the rows of its new part.

**A rank that is lost** takes its rows with it. The others go back to the newest copy in memory of which they have
every row among them, else to the newest durable checkpoint, else to the beginning. So up to `hot_every_steps`
steps are taken again; where a rank is lost together with the neighbour that keeps its copy, those since the last
durable checkpoint.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.hot import HotCopies, Ring
from oakum_worker.checkpoint.sharded import ShardedCheckpoints
from oakum_worker.errors import CheckpointError
from oakum_worker.parallel import recovery
from oakum_worker.parallel.layout import Part, Place, Rows, SplitTensor, by_part
from oakum_worker.parallel.recovery import Source
from oakum_worker.parallel.reshard import Places, exchange, gather_documents
from oakum_worker.parallel.shards import LocalState, Snapshot, Tell
from oakum_worker.parallel.sharing import share
from oakum_worker.protocol import Generation
from oakum_worker.skeleton import Document, assemble
from oakum_worker.spec import TrainerSpec

_CPU = torch.device("cpu")


class Loop(Protocol):
    """What the keeper has to know and change of the training loop."""

    @property
    def step_count(self) -> int:
        """Finished steps."""

    def rest_of_state(self) -> dict[str, Any]:
        """The state beside model and optimizer: scheduler, cursor and whatever else there is."""

    def held_at_boundary(self) -> AbstractContextManager[dict[str, Any]]:
        """The state of the last finished step, all of it, for another thread; of a rank alone."""

    def go_on_from(self, rest: Mapping[str, Any]) -> None:
        """Take up such a state. The task has another model; it and the optimizer have their state already."""


class Surroundings(Protocol):
    """What the keeper has to know of the process it is in."""

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        """The number of the generation that follows, not below `at_least`, and this process's rank in it, if any.

        Waits for it. None where this process has to leave whatever follows.
        """

    def closing(self) -> bool:
        """Whether this process has been told to leave without waiting for another generation."""

    def initial_values(self) -> Rows:
        """The model's parameters and buffers by name, built once more as they were at the very beginning."""

    def warn(self, text: str) -> None:
        """Tell the user of something that does not end training."""


class SplitState(Protocol):
    """The task's model and optimizer, of which each rank has a part: `Shards` and `StageState`."""

    is_partial: bool
    place: Place

    def lay_out(self, group: dist.ProcessGroup | None, rank: int, world_size: int, tell: Tell) -> None: ...
    def free(self) -> None: ...
    def capture(self, rest: Mapping[str, Any]) -> LocalState: ...
    def complete(self, state: LocalState, tell: Tell) -> LocalState: ...
    def joined(self, document: Document, entries: list[Any]) -> Document: ...
    def split_tensors(self, document: Document) -> list[SplitTensor]: ...
    def allocate(self, document: Document) -> dict[str, torch.Tensor]: ...
    def fill(self, document: Document, whole: Rows, rows: Rows) -> None: ...


class SplitEngine(Protocol):
    """What takes its steps."""

    group: dist.ProcessGroup | None
    votes: Callable[[], tuple[int, ...]]
    counted: tuple[int, ...]
    steps: int


class ShardedKeeper:
    """Keeps one rank's part of the state, together with the other ranks'. A `Keeper`."""

    def __init__(
        self,
        loop: Loop,
        shards: SplitState,
        engine: SplitEngine,
        spec: TrainerSpec,
        checkpoints: DurableCheckpoints,
        around: Surroundings,
    ) -> None:
        self._loop = loop
        self._shards = shards
        self._engine = engine
        self._spec = spec
        self._around = around
        self._checkpoints = checkpoints
        self._durable = ShardedCheckpoints(checkpoints, spec.checkpoint.every_s, around.warn)
        self._hot = HotCopies()
        self._generation, self._rank, self._world_size = 0, 0, 1
        self._alone = self._place.parts
        """Of a rank alone, which has all of the state."""
        self._beginning = _copied(self._capture())
        self._first: Snapshot | None = self._snapshot(self._capture())
        """What the user has built, until there is something else to go on from."""
        self._held: list[Snapshot] = []
        """What this rank has of the state that ended generations left."""
        self._ahead: int | None = None
        """By how many steps the engine's count is above the loop's while the live state is whole; else None."""
        self._saved_step: int | None = None
        """The step that the ranks have last saved together."""
        self.redone_steps = 0
        """Finished steps that the present generation has to take again."""
        engine.votes = self._votes

    def begin(self, generation: Generation, rank: int) -> str:
        """See `Keeper`."""
        self._end_generation()
        self._generation, self._rank, self._world_size = generation.number, rank, generation.world_size
        snapshots = [*self._held, *self._hot.snapshots()]
        finished = None if self._first is not None else self._loop.step_count
        told = self._tell_each_other(recovery.announce(snapshots, finished))
        source = recovery.choose(told)
        self._shards.lay_out(self._engine.group, rank, self._world_size, self._tell_each_other)
        if source is not None:
            self._take_up(source, snapshots)
            origin = "survivor" if source.step == recovery.most_finished(told) else "memory"
        elif self._load_newest():
            origin = "checkpoint"
        else:
            self._begin_anew()
            origin = "scratch"
        self._report(recovery.most_finished(told) - self._loop.step_count)
        self._go_on()
        return origin

    def durable_due(self) -> bool:
        """See `Keeper`."""
        return self._durable.due

    def after_step(self, *, durable: bool) -> bool:
        """See `Keeper`. Whether the ranks have agreed that who is told to close may leave at this boundary."""
        arrived, written, failed, closing = self._engine.counted
        if arrived == self._world_size:
            self._hot.confirm()
        self._durable.count(written, failed)
        hot = self._hot.idle and self._loop.step_count % self._spec.checkpoint.hot_every_steps == 0
        durable = durable and not self._durable.busy
        if hot or durable:
            state = self._complete_state()
            if hot:
                self._hot.start(state, self._loop.step_count, self._generation)
            if durable:
                self._durable.start(state, self._loop.step_count, self._place, self._generation)
        if closing:
            self._save_together()
        return closing > 0

    def settle(self) -> None:
        """Wait until nothing of this rank's is on its way to a neighbour or to the disk."""
        self._hot.settle()
        self._durable.wait()

    def before_switch(self, generation: Generation, rank: int) -> None:
        """See `Keeper`. Those that leave hand over what they have; if all do, the state becomes a checkpoint."""
        self._hot.settle()
        followers = self._agree_on_successor()
        staying = [rank for rank, follower in enumerate(followers) if follower is not None]
        state = self._complete_state()
        if staying:
            self._held = [self._hand_over(state, staying)]
            self._durable.conclude(publish=all(self._tell_each_other(self._durable.written)), retry=True)
        else:
            self._save_together()
            self._held = [self._snapshot(state)]
        self._ahead = None

    def finish(self) -> None:
        """See `Keeper`."""
        self._save_together()

    def close(self, *, save: bool) -> None:
        """See `Keeper`. Several ranks have saved their state before, at a boundary that they agreed on."""
        if save and self._world_size == 1 and self._is_live() and self._saved_step != self._loop.step_count:
            self._save_together()
        self._durable.wait()

    def close_at_once(self, *, save: bool) -> bool:
        """See `Keeper`. Where there are others they need this rank's rows, at the next step boundary."""
        if self._first is not None:
            return True
        if self._world_size > 1:
            return False
        with self._loop.held_at_boundary() as state:
            if not self._is_live():
                return False
            if save:
                self._save_alone(state)
        return True

    @property
    def _place(self) -> Place:
        return self._shards.place

    def _votes(self) -> tuple[int, ...]:
        return int(self._hot.arrived), *self._durable.outcome(), int(self._around.closing())

    def _capture(self) -> LocalState:
        return self._shards.capture(self._loop.rest_of_state())

    def _complete_state(self) -> LocalState:
        """Collective: the same, told of in full."""
        return self._shards.complete(self._capture(), self._tell_each_other)

    def _snapshot(self, state: LocalState, handed: Mapping[Part, Rows] | None = None) -> Snapshot:
        rows = {path: tensor.to(_CPU) for path, tensor in state.rows.items()}
        whole = {path: tensor.to(_CPU) for path, tensor in state.whole.items()}
        parts = {**by_part(self._place.parts, state.tensors, rows), **(handed or {})}
        return Snapshot(self._loop.step_count, self._generation, state.document, whole, parts)

    def _tell_each_other(self, document: Any) -> list[Any]:
        return gather_documents(document, self._engine.group, self._world_size)

    def _is_live(self) -> bool:
        """Whether the model and the optimizer hold this rank's part of the last finished step's state."""
        return self._ahead is not None and self._engine.steps - self._loop.step_count == self._ahead

    def _end_generation(self) -> None:
        """Keep what there is of the generation before, which may have broken at any point."""
        self._hot.abandon()
        self._durable.conclude(publish=False, retry=True)
        if self._is_live():
            self._held.append(self._snapshot(self._capture()))
        if self._ahead is not None:
            # It broke, maybe with parameters gathered in full, which reference cycles of FSDP2 would hold on to.
            gc.collect()
        self._ahead = None

    def _go_on(self) -> None:
        """From here on this generation's state is the one that counts, once all ranks have it."""
        self._ahead = self._engine.steps - self._loop.step_count
        self._tell_each_other(None)
        self._held, self._first = [], None
        self._shards.free()
        self._hot.enter(self._ring())
        if self._hot.idle:
            self._hot.start(self._complete_state(), self._loop.step_count, self._generation)

    def _ring(self) -> Ring | None:
        if self._engine.group is None:
            return None
        per_node = self._spec.ranks_per_node
        distance = per_node if self._world_size > per_node else 1
        return Ring(self._engine.group, self._place, distance)

    def _take_up(self, source: Source, snapshots: list[Snapshot]) -> None:
        """Deal what the ranks still have of a step among them anew."""
        own = [snapshot for snapshot in snapshots if source.is_of(snapshot)]
        spoken = None
        entries: list[Any] = []
        if self._shards.is_partial:
            # Of the step's copy this rank may know more than of the step itself: what a neighbour has told it.
            known = [snapshot.document["optimizer"]["state"] for snapshot in own]
            entries = self._tell_each_other({name: values for state in known for name, values in state.items()})
        if source.speaker == self._rank:
            spoken = {"document": self._shards.joined(own[0].document, entries), "whole": own[0].whole}
        held = Places(list(source.holders.items()), source.rows(snapshots, self._rank))
        self._deal(spoken, source.speaker, held)

    def _begin_anew(self) -> None:
        """Rank 0 deals out what the user has built."""
        spoken, mine = None, {}
        if self._rank == 0:
            document = self._beginning.document
            spoken = {"document": document, "whole": self._beginning.whole}
            mine = self._first.parts if self._first is not None else self._built_again(document)
        self._deal(spoken, 0, Places([(part, 0) for part in self._alone], mine))

    def _built_again(self, document: Document) -> dict[Part, Rows]:
        model = document["model"]
        built = self._around.initial_values()
        rows = {model[name]["$tensor"]: torch.atleast_1d(value.detach()).to(_CPU) for name, value in built.items()}
        split = [tensor for tensor in self._shards.split_tensors(document) if tensor.path in rows]
        return by_part(self._alone, split, rows)

    def _deal(self, spoken: Any, speaker: int, held: Places) -> None:
        group = self._engine.group
        if group is not None:
            spoken = share(spoken, group, self._rank, speaker, _CPU)
        document, whole = spoken["document"], spoken["whole"]
        rows = self._shards.allocate(document)
        split = self._shards.split_tensors(document)
        needed = Places(self._place.holdings.all(), by_part(self._place.parts, split, rows))
        exchange(split, held, needed, group, self._rank)
        self._fill(document, whole, rows)

    def _fill(self, document: Document, whole: Rows, rows: Rows) -> None:
        self._shards.fill(document, whole, rows)
        rest = {key: value for key, value in document.items() if key not in ("model", "optimizer")}
        self._loop.go_on_from(assemble(rest, whole))

    def _load_newest(self) -> bool:
        """Take up the newest durable checkpoint that all ranks can read; False where there is none."""
        for stored in self._durable.stored(self._place, self._tell_each_other):
            rows = self._shards.allocate(stored.document)
            whole, fault = stored.try_reading(self._shards.split_tensors(stored.document), self._place, rows)
            if not any(self._tell_each_other(fault)):
                self._fill(stored.document, whole, rows)
                return True
        return False

    def _agree_on_successor(self) -> list[int | None]:
        """Every present rank's rank in the generation that follows, None for those that leave.

        They hear of generations at their own times, so those who know an older one wait for the newest.
        """
        at_least = self._generation + 1
        while True:
            following = self._around.successor(at_least)
            told = self._tell_each_other(following)
            numbers = {answer[0] for answer in told if answer is not None}
            if len(numbers) <= 1:
                return [None if answer is None else answer[1] for answer in told]
            at_least = max(numbers)

    def _hand_over(self, state: LocalState, staying: list[int]) -> Snapshot:
        """Collective: spread the parts that only ranks hold which do not stay evenly over those that do."""
        holdings = self._place.holdings
        kept = {part for rank in staying for part in holdings.by_rank[rank]}
        holders = {part: rank for part, rank in holdings.first_holders().items() if part not in kept}
        receivers = [(piece, staying[piece.index]) for part in holders for piece in part.shares(len(staying))]
        handed: dict[Part, Rows] = {
            piece: {tensor.path: tensor.empty(piece.rows(tensor)) for tensor in state.tensors}
            for piece, receiver in receivers
            if receiver == self._rank
        }
        own = self._snapshot(state)
        held = Places(list(holders.items()), own.parts)
        exchange(state.tensors, held, Places(receivers, handed), self._engine.group, self._rank)
        return self._snapshot(state, handed)

    def _save_together(self) -> None:
        """Collective: a durable checkpoint of this step boundary. One that cannot be written is reported."""
        self._durable.conclude(publish=False)
        self._durable.start(self._complete_state(), self._loop.step_count, self._place, self._generation)
        self._durable.wait()
        self._durable.conclude(publish=all(self._tell_each_other(self._durable.written)))
        self._durable.wait()
        self._tell_each_other(None)
        self._saved_step = self._loop.step_count

    def _save_alone(self, state: dict[str, Any]) -> None:
        step = state["cursor"]["step"]
        if self._saved_step == step:
            return
        try:
            self._checkpoints.save(state, step)
        except CheckpointError as error:
            self._around.warn(str(error))

    def _report(self, redone_steps: int) -> None:
        self.redone_steps = redone_steps
        if redone_steps > 0 and self._rank == 0:
            first = self._loop.step_count + 1
            self._around.warn(
                f"steps {first} to {first + redone_steps - 1} are taken again: a rank was lost with its part of "
                f"their results, and the state of step {first - 1} is the newest that is there in full"
            )


def _copied(state: LocalState) -> LocalState:
    """Without the rows, and with copies of the rest."""
    return LocalState(state.document, {path: tensor.clone() for path, tensor in state.whole.items()}, {}, [])
