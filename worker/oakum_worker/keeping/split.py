"""How a split state outlives generations: each rank has a part of it.

**Planned changes** lose nothing. At the step boundary that all ranks have agreed on, leaving ranks hand their rows
evenly to staying ranks; in the next generation each rank receives the rows of its new part.

**A lost rank's** rows are lost, too. The other ranks go back to the newest copy in memory of which they have every
row between them, else to the newest durable checkpoint, else to the beginning. They take the steps since the copy
again, or, where a rank is lost together with the neighbour that keeps its copy, the steps since the checkpoint.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import torch

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.neighbour_copies import NeighbourCopies, Ring
from oakum_worker.checkpoint.sharded import ShardedCheckpoints
from oakum_worker.errors import CheckpointError, GroupError
from oakum_worker.keeping.keeper import Keeper, KeeperProcess, KeptState
from oakum_worker.parallel import recovery
from oakum_worker.parallel.holdings import Part, Place, Rows, by_part
from oakum_worker.parallel.recovery import Source
from oakum_worker.parallel.reshard import PartLocations, exchange, gather_documents
from oakum_worker.parallel.split_state import LocalState, RankSnapshot, SplitState
from oakum_worker.parallel.state_broadcast import broadcast_state
from oakum_worker.parallel.stations import copy_distance
from oakum_worker.parallel.step_engine import SplitStateEngine, StateVotes
from oakum_worker.protocol import BestEvaluation, Generation, Station
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.tree import Document, assemble

_CPU = torch.device("cpu")


class SplitStateKeeper(Keeper):
    """Keeper of a rank that has a part of a split state. It works together with the other ranks' keepers."""

    def __init__(
        self,
        state: KeptState,
        split: SplitState,
        engine: SplitStateEngine,
        spec: TrainerSpec,
        checkpoints: DurableCheckpoints,
        process: KeeperProcess,
    ) -> None:
        self._state = state
        self._split = split
        self._engine = engine
        self._spec = spec
        self._process = process
        self._checkpoints = checkpoints
        self._durable = ShardedCheckpoints(checkpoints, spec.checkpoint.every_s, process.warn)
        self._hot = NeighbourCopies()
        self._generation, self._rank, self._world_size = 0, 0, 1
        self._stations: tuple[Station, ...] = ()
        self._alone = self._place.parts
        """The parts that a rank alone holds, which make up the whole state."""
        self._beginning = _copied(self._capture())
        self._first: RankSnapshot | None = self._snapshot(self._capture())
        """The initial state as the user's code built it; None as soon as a generation has begun."""
        self._held: list[RankSnapshot] = []
        """This rank's parts of the states that ended generations left."""
        self._ahead: int | None = None
        """The engine's count of steps minus the loop's, whenever the live state is whole; None outside
        generations."""
        self._saved_step: int | None = None
        """The step that the ranks have last saved together; None before."""
        self.redone_steps = 0
        """Number of finished steps that the present generation has to take again."""
        engine.votes = self._votes

    @property
    def holds_state(self) -> bool:
        """Whether this rank has its part of the trainer's state. The initial state does not count, because every
        process builds it itself."""
        return self._first is None

    def begin(self, generation: Generation, rank: int) -> str:
        """Bring all ranks of the generation to one finished step, each with its new part of the state: from the
        ranks' memory, else from the newest durable checkpoint that all can read, else from the beginning.

        Returns where the state came from: `survivor` (no step is lost), `memory` (steps are repeated),
        `checkpoint` or `scratch`. Raises `GroupError` when a rank is lost, or when no rank has the state although
        the service knew of one.
        """
        self._end_generation()
        self._generation, self._rank, self._world_size = generation.number, rank, generation.world_size
        self._stations = generation.stations
        snapshots = [*self._held, *self._hot.snapshots()]
        finished = None if self._first is not None else self._state.step_count
        announcements = self._tell_each_other(recovery.announce(snapshots, finished, self._durable.age_s))
        if generation.has_state and not recovery.has_anybody_trained(announcements):
            raise GroupError("no member has the state any more: the service has to find out who else has it")
        # Any rank may become rank 0, which asks for the next durable checkpoint.
        self._durable.take_over_age(recovery.greatest_age_s(announcements))
        source = recovery.choose_source(announcements)
        self._split.lay_out(self._engine.group, rank, self._world_size, self._tell_each_other, self._stations)
        if source is not None:
            self._take_up(source, snapshots)
            origin = "survivor" if source.step == recovery.most_finished(announcements) else "memory"
        elif self._load_newest():
            origin = "checkpoint"
        else:
            self._begin_anew()
            origin = "scratch"
        self._report(recovery.most_finished(announcements) - self._state.step_count)
        self._go_on()
        return origin

    def durable_due(self) -> bool:
        """Whether a durable checkpoint is to be started now. Only rank 0's answer is used."""
        return self._durable.due

    def after_step(self, *, durable: bool) -> bool:
        """Start the copy in memory and, if `durable`, the durable checkpoint that are due at this step boundary;
        collective where either is.

        Returns whether a rank may close here: only if some rank voted in this step that it has to close. All ranks
        have then saved a checkpoint together.
        """
        votes = self._engine.counted
        if votes.copies_arrived == self._world_size:
            self._hot.confirm()
        self._durable.count(votes.shares_written, votes.shares_failed)
        hot = self._hot.idle and self._state.step_count % self._spec.checkpoint.hot_every_steps == 0
        durable = durable and not self._durable.busy
        if hot or durable:
            state = self._complete_state()
            if hot:
                self._hot.start(state, self._state.step_count, self._generation)
            if durable:
                self._durable.start(state, self._state.step_count, self._place, self._generation)
        if votes.closing:
            self._save_together()
        return votes.closing > 0

    def settle(self) -> None:
        """Wait until nothing of this rank's state is on its way to a neighbour or to the disk."""
        self._hot.settle()
        self._durable.wait()

    def keep_best(self, best: BestEvaluation) -> None:
        """Collective: write the state as a durable checkpoint that stays until a better one is written; returns
        when it is durable."""
        self._checkpoints.best = best
        self._save_together()

    def before_switch(self, generation: Generation, rank: int) -> None:
        """Collective, at the boundary at which all ranks leave the generation: leaving ranks hand their rows to
        staying ranks; if all leave, they save a checkpoint."""
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
        """Save the final state as a durable checkpoint, together with all other ranks; returns when it is
        durable."""
        self._save_together()

    def close(self, *, save: bool) -> None:
        """Prepare for this rank's end. With `save`, a rank alone writes a durable checkpoint; several ranks have
        saved together before, in `after_step` or `before_switch`."""
        if save and self._world_size == 1 and self._is_live() and self._saved_step != self._state.step_count:
            self._save_together()
        self._durable.wait()

    def close_at_once(self, *, save: bool) -> bool:
        """Called from another thread in the middle of a step: prepare for this rank's end now, and return True.
        With `save`, a rank alone first writes the state of the last finished step. Returns False, and does
        nothing, where the end has to wait until the step is finished: other ranks need this rank's rows, or the
        weights are at present not those of the state."""
        if self._first is not None:
            return True
        if self._world_size > 1:
            return False
        with self._state.held_at_boundary() as state:
            if not self._is_live() or (save and self._state.is_evaluating):
                return False
            if save:
                self._save_alone(state)
        return True

    @property
    def _place(self) -> Place:
        return self._split.place

    def _votes(self) -> StateVotes:
        written, failed = self._durable.outcome()
        return StateVotes(int(self._hot.arrived), written, failed, int(self._process.closing()))

    def _capture(self) -> LocalState:
        return self._split.capture(self._state.rest())

    def _complete_state(self) -> LocalState:
        """Collective: this rank's part of the present state, with a document that covers all ranks' parts."""
        return self._split.complete(self._capture(), self._tell_each_other)

    def _snapshot(self, state: LocalState, handed: Mapping[Part, Rows] | None = None) -> RankSnapshot:
        rows = {path: tensor.to(_CPU) for path, tensor in state.rows.items()}
        whole = {path: tensor.to(_CPU) for path, tensor in state.whole.items()}
        parts = {**by_part(self._place.parts, state.tensors, rows), **(handed or {})}
        return RankSnapshot(self._state.step_count, self._generation, state.document, whole, parts)

    def _tell_each_other(self, document: Any) -> list[Any]:
        return gather_documents(document, self._engine.group, self._world_size)

    def _is_live(self) -> bool:
        """Whether the model and the optimizer hold this rank's part of the last finished step's state."""
        return self._ahead is not None and self._engine.steps - self._state.step_count == self._ahead

    def _end_generation(self) -> None:
        """Stop copies and checkpoints of the previous generation, and keep this rank's part of its state in
        memory, if that is whole; the generation may have broken at any point."""
        self._hot.abandon()
        self._durable.conclude(publish=False, retry=True)
        if self._is_live():
            self._held.append(self._snapshot(self._capture()))
        if self._ahead is not None:
            # A broken generation may leave parameters gathered in full, which reference cycles of FSDP2 keep
            # alive.
            gc.collect()
        self._ahead = None

    def _go_on(self) -> None:
        """Collective, once this rank has its part of the new generation's state: wait until all ranks have theirs,
        then drop older states and start a copy in memory."""
        self._ahead = self._engine.steps - self._state.step_count
        self._tell_each_other(None)
        self._held, self._first = [], None
        self._split.free()
        self._hot.enter(self._ring())
        if self._hot.idle:
            self._hot.start(self._complete_state(), self._state.step_count, self._generation)

    def _ring(self) -> Ring | None:
        if self._engine.group is None:
            return None
        return Ring(self._engine.group, self._place, copy_distance(self._stations))

    def _take_up(self, source: Source, snapshots: list[RankSnapshot]) -> None:
        """Collective: give every rank its new part of the state that `source` describes, whose rows the ranks have
        in `snapshots`."""
        own = [snapshot for snapshot in snapshots if source.is_of(snapshot)]
        spoken = None
        entries: list[Any] = []
        if self._split.is_partial:
            # Of the step's copy this rank may know more than of the step itself: what a neighbour has told it.
            states = [snapshot.document["optimizer"]["state"] for snapshot in own]
            entries = self._tell_each_other({name: values for state in states for name, values in state.items()})
        if source.speaker == self._rank:
            spoken = {"document": self._split.joined(own[0].document, entries), "whole": own[0].whole}
        held = PartLocations(list(source.holders.items()), source.rows(snapshots, self._rank))
        self._deal(spoken, source.speaker, held)

    def _begin_anew(self) -> None:
        """Collective: give every rank its part of the initial state, from rank 0."""
        spoken, mine = None, {}
        if self._rank == 0:
            document = self._beginning.document
            spoken = {"document": document, "whole": self._beginning.whole}
            mine = self._first.parts if self._first is not None else self._built_again(document)
        self._deal(spoken, 0, PartLocations([(part, 0) for part in self._alone], mine))

    def _built_again(self, document: Document) -> dict[Part, Rows]:
        model = document["model"]
        built = self._process.initial_values()
        rows = {model[name]["$tensor"]: torch.atleast_1d(value.detach()).to(_CPU) for name, value in built.items()}
        split = [tensor for tensor in self._split.split_tensors(document) if tensor.path in rows]
        return by_part(self._alone, split, rows)

    def _deal(self, spoken: Any, speaker: int, held: PartLocations) -> None:
        group = self._engine.group
        if group is not None:
            spoken = broadcast_state(spoken, group, self._rank, speaker, _CPU)
        document, whole = spoken["document"], spoken["whole"]
        rows = self._split.allocate(document)
        split = self._split.split_tensors(document)
        needed = PartLocations(self._place.holdings.all(), by_part(self._place.parts, split, rows))
        exchange(split, held, needed, group, self._rank)
        self._fill(document, whole, rows)

    def _fill(self, document: Document, whole: Rows, rows: Rows) -> None:
        self._split.fill(document, whole, rows)
        rest = {key: value for key, value in document.items() if key not in ("model", "optimizer")}
        self._state.go_on_from(assemble(rest, whole))

    def _load_newest(self) -> bool:
        """Put the state of the newest durable checkpoint that all ranks can read into the model, the optimizer and
        the training loop. Collective. Returns False, with the training loop unchanged, where there is none."""
        for stored in self._durable.stored(self._place, self._tell_each_other):
            rows = self._split.allocate(stored.document)
            whole, fault = stored.try_reading(self._split.split_tensors(stored.document), self._place, rows)
            if not any(self._tell_each_other(fault)):
                self._fill(stored.document, whole, rows)
                return True
        return False

    def _agree_on_successor(self) -> list[int | None]:
        """Collective: each present rank's rank in the next generation, None for ranks that leave.

        Ranks hear of generations at different times, so ranks that know an older one wait for the newest one.
        """
        at_least = self._generation + 1
        while True:
            following = self._process.successor(at_least)
            successors = self._tell_each_other(following)
            numbers = {answer[0] for answer in successors if answer is not None}
            if len(numbers) <= 1:
                return [None if answer is None else answer[1] for answer in successors]
            at_least = max(numbers)

    def _hand_over(self, state: LocalState, staying: list[int]) -> RankSnapshot:
        """Collective: distribute the parts that only leaving ranks hold evenly over the `staying` ranks."""
        holdings = self._place.holdings
        kept = {part for rank in staying for part in holdings.by_rank[rank]}
        holders = {part: rank for part, rank in holdings.first_holders().items() if part not in kept}
        receivers = [(piece, staying[piece.index]) for part in holders for piece in part.shares(len(staying))]
        handed: dict[Part, Rows] = {
            piece: {tensor.path: tensor.empty(piece.block(tensor)) for tensor in state.tensors}
            for piece, receiver in receivers
            if receiver == self._rank
        }
        own = self._snapshot(state)
        held = PartLocations(list(holders.items()), own.parts)
        exchange(state.tensors, held, PartLocations(receivers, handed), self._engine.group, self._rank)
        return self._snapshot(state, handed)

    def _save_together(self) -> None:
        """Collective: write a durable checkpoint of this step boundary; warn where it cannot be written."""
        self._durable.conclude(publish=False)
        self._durable.start(self._complete_state(), self._state.step_count, self._place, self._generation)
        self._durable.wait()
        self._durable.conclude(publish=all(self._tell_each_other(self._durable.written)))
        self._durable.wait()
        self._tell_each_other(None)
        self._saved_step = self._state.step_count

    def _save_alone(self, state: dict[str, Any]) -> None:
        step = state["cursor"]["step"]
        if self._saved_step == step:
            return
        try:
            self._checkpoints.save(state, step)
        except CheckpointError as error:
            self._process.warn(str(error))

    def _report(self, redone_steps: int) -> None:
        self.redone_steps = redone_steps
        if redone_steps > 0 and self._rank == 0:
            first = self._state.step_count + 1
            self._process.warn(
                f"steps {first} to {first + redone_steps - 1} are computed again: a rank was lost with its part "
                "of "
                f"the state, and step {first - 1} is the newest whose whole state is left"
            )


def _copied(state: LocalState) -> LocalState:
    """A copy of the state's tensors that are not split, with the same document and without rows."""
    return LocalState(state.document, {path: tensor.clone() for path, tensor in state.whole.items()}, {}, [])
