"""A step that is a round of MapReduce: ranks map blocks, rank 0 adds statistics up in the blocks' order.

Blocks are those of the step's batch in the data set's order. A rank combines what it can and delivers the topmost
nodes of its blocks to rank 0 (`map_reduce.sums`), which completes the tree and answers with the sum. Rank 0 deals
blocks of slow mappers again (`round_server`). When a rank is lost within a round, the others keep their nodes, and
rank 0 keeps what was delivered. The ranks of the next generation tell each other what they hold, and only the
other blocks are mapped again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from oakum_worker.map_reduce.dealer import Map
from oakum_worker.map_reduce.dealing import Share, deal, even_shares
from oakum_worker.map_reduce.rounds import RoundState, RoundTask
from oakum_worker.map_reduce.sums import Arrays, BlockSums, Node
from oakum_worker.map_reduce.wire import to_bytes
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.parallel.step_engine import GlobalBatch, Reduced, StepEngine, StepVotes
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_gather
from oakum_worker.strategies.map_reduce.round_server import Answer, Over, Request, RoundServer, no_lost_rank

_ASK_EVERY_S = 0.05
"""A mapper asks whether its blocks are still its own after so many seconds."""


class MapReduceEngine(StepEngine):
    """Computes rounds of a `RoundTask` over ranks that each have the whole state."""

    passes_communicate = True
    tells_waiting = True
    patience_s = 1.0
    """Seconds for which no mapper counts as slow."""

    def __init__(self, task: RoundTask) -> None:
        assert isinstance(task.model, RoundState)
        self._task, self._model = task, task.model
        self._group: dist.ProcessGroup | None = None
        self._server: RoundServer | None = None
        self._round = (-1, 0)
        self._sums = BlockSums(0, task.job.combine)
        self._delivered: set[Node] = set()
        self._uncounted = StepVotes()
        self.blocks_mapped = 0
        """By this rank so far."""
        self.bytes_sent = 0
        """Bytes of statistics that this rank has sent to be summed, as a mapper."""

    def join(
        self, group: dist.ProcessGroup | None, world_size: int, *, rank: int, subgroups: Subgroups | None
    ) -> None:
        """See `StepEngine`. The statistics of a round that broke off stay."""
        if self._server is not None:
            self._keep(self._server.close())
        self._group, self._rank, self._world_size = group, rank, world_size
        self._server, self._is_new = None, True

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """See `StepEngine`. Maps blocks until the round is over."""
        with self._task.mapping.in_round(self._model):
            self._compute(batch, votes())

    def _compute(self, batch: GlobalBatch, votes: StepVotes) -> None:
        self._begin_round(batch.num_samples)
        shares = self._shares(batch)
        self._delivered = set()
        if self._group is None:
            self._map(batch, shares[0].computes)
            self._end = self._sums.total, votes
            return
        votes = _joined(votes, self._uncounted)
        answer = self._ask(batch, votes)
        while not isinstance(answer, Over):
            if isinstance(answer, Map):
                answer = self._ask(batch, votes, mapped=self._map_a_while(batch, answer.blocks))
            else:
                answer = self._deliver(batch, votes)
        self._uncounted = StepVotes() if answer.counts else votes
        self._end = answer.statistics, answer.votes

    def finish(self) -> Reduced:
        """See `StepEngine`."""
        total, votes = self._end
        number, self._round = self._round[0], (-1, 0)
        if self._server is not None and votes.signal:
            # The group is about to be left, and a slow rank may not know yet that the round is over.
            self._server.wait_until_all_know(number)
        self._task.update.total = total
        return Reduced(float(total["loss"]) / max(float(total["examples"]), 1.0), votes)

    def _keep(self, broken: tuple[int, BlockSums] | None) -> None:
        """Keep what other ranks have delivered of a round that broke off."""
        if broken is None:
            return
        number, sums = broken
        if self._round != (number, sums.num_blocks):
            self._round, self._sums = (number, sums.num_blocks), sums
            return
        for node, statistics in sums.nodes.items():
            self._sums.offer(node, statistics)

    def _begin_round(self, num_blocks: int) -> None:
        now = int(self._model.round), num_blocks
        if self._round != now:
            self._round = now
            self._sums = BlockSums(num_blocks, self._task.job.combine)

    def _shares(self, batch: GlobalBatch) -> list[Share]:
        """All ranks' shares of the round. In the first round of a generation, collective: the ranks tell each
        other which blocks' statistics they hold."""
        number, num_blocks = self._round
        if not self._is_new and self._group is not None:
            return even_shares(num_blocks, self._world_size)
        levels_by_rank = [torch.tensor(self._sums.levels(), dtype=torch.int64)]
        if self._group is not None:
            with batch.waiting():
                levels_by_rank = all_gather(levels_by_rank[0], self._group)
        shares = deal([levels.tolist() for levels in levels_by_rank])
        self._sums.keep_only(set(shares[self._rank].keeps))
        if self._group is not None and self._rank == 0:
            self._server = RoundServer(self._group, self._task.job.combine, self.patience_s)
            self._server.begin(number, num_blocks, shares)
        self._is_new = False
        return shares

    def _map_a_while(self, batch: GlobalBatch, blocks: Sequence[int]) -> int:
        """Map blocks until it is time to ask again. Returns how many."""
        until_s = time.monotonic() + _ASK_EVERY_S
        count = 0
        while count < len(blocks) and (not count or time.monotonic() < until_s):
            self._map(batch, [blocks[count]])
            count += 1
        return count

    def _map(self, batch: GlobalBatch, blocks: Sequence[int]) -> None:
        numbers = batch.numbers
        in_order = sorted(range(len(numbers)), key=numbers.__getitem__)
        known = self._sums.blocks
        for block in blocks:
            if block in known:
                continue
            position = in_order[block]
            with batch.loss(Chunk(range(position, position + 1), 1)):
                statistics = self._task.mapping.last
            assert statistics is not None
            self._sums.add(block, statistics)
            self.blocks_mapped += 1

    def _deliver(self, batch: GlobalBatch, votes: StepVotes) -> Answer:
        nodes = {node: found for node, found in self._sums.nodes.items() if node not in self._delivered}
        self._delivered |= nodes.keys()
        if self._rank:
            self.bytes_sent += sum(array.nbytes for node in nodes.values() for array in node.values())
        return self._ask(batch, votes, nodes=nodes)

    def _ask(
        self, batch: GlobalBatch, votes: StepVotes, mapped: int = 0, nodes: dict[Node, Arrays] | None = None
    ) -> Answer:
        number, num_blocks = self._round
        delivered = None if nodes is None else to_bytes(nodes)
        request = Request(self._rank, number, num_blocks, votes, mapped, delivered)
        with batch.waiting():
            if self._server is not None:
                return self._server.answer(request)
            assert self._group is not None
            with no_lost_rank():
                return request.ask(self._group)


def _joined(votes: StepVotes, earlier: StepVotes) -> StepVotes:
    """A rank's votes, and those that came too late for an earlier round."""
    return StepVotes(*map(max, votes, earlier))
