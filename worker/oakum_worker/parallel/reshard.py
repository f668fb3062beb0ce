"""Rows of tensors sent from those that hold them to those that need them, without a whole tensor in between.

Every rank works out from the parts alone which of its rows go where; nothing is asked or announced on the way.
Tensors go one after the other, small ones gathered into messages, since each message costs a round trip. Rows that
are sent or received alone need no memory beside their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel.layout import Part, Rows, SplitTensor, intersection
from oakum_worker.parallel.waiting import wait_for_message

_BATCH_BYTES = 32 << 20
_LARGE_BYTES = 1 << 18


@dataclass(frozen=True)
class Places:
    """Who holds or needs which part, and this rank's rows of those that are its own."""

    ranks: Sequence[tuple[Part, int]]
    """(part, rank in the group), in any order."""
    mine: Mapping[Part, Rows]

    def overlapping(self, rows: range, tensor: SplitTensor) -> Iterator[tuple[int, Part, range]]:
        """(rank, part, common rows) for each part that has some of the rows, in one order on all ranks."""
        for part, rank in sorted(self.ranks):
            if common := intersection(rows, part.rows(tensor)):
                yield rank, part, common


class _Messages:
    """What one rank sends to or receives from each other rank in one round: runs of rows, in a fixed order."""

    def __init__(self) -> None:
        self._large: list[tuple[int, torch.Tensor]] = []
        self._small: dict[int, list[torch.Tensor]] = {}

    def add(self, peer: int, rows: torch.Tensor) -> None:
        """Note a run that goes to or comes from the peer."""
        run = rows.reshape(-1).view(torch.uint8)
        if run.numel() >= _LARGE_BYTES:
            self._large.append((peer, run))
        else:
            self._small.setdefault(peer, []).append(run)

    def gathered(self) -> Iterator[tuple[int, torch.Tensor, list[torch.Tensor]]]:
        """(peer, the message's bytes, the runs that it consists of); a large run is its own message."""
        for peer, run in self._large:
            yield peer, run, []
        for peer, runs in self._small.items():
            yield peer, runs[0].new_empty(sum(run.numel() for run in runs)), runs


def exchange(
    tensors: Sequence[SplitTensor],
    held: Places,
    needed: Places,
    group: dist.ProcessGroup | None,
    rank: int,
    *,
    batch_bytes: int = _BATCH_BYTES,
) -> None:
    """Collective: fill the rows of the needed parts from the held ones, which have no row in common.

    The same part may be needed by several ranks.

    Rows are contiguous tensors on the CPU. Messages of small tensors take memory of up to `batch_bytes` on either
    side. None as the group is a rank alone. Raises `GroupError` when a rank is gone; what was to be filled is then
    worthless.
    """
    try:
        for batch in _batches([tensor for tensor in tensors if tensor.row_bytes], batch_bytes):
            _exchange_batch(batch, held, needed, group, rank)
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while the state was dealt anew: {error}") from error


def _exchange_batch(
    batch: Sequence[SplitTensor], held: Places, needed: Places, group: dist.ProcessGroup | None, rank: int
) -> None:
    outgoing, incoming = _Messages(), _Messages()
    for tensor in batch:
        # Both sides go through the held parts first, so that they put a message together in the same order.
        for part, holder in sorted(held.ranks):
            rows = part.rows(tensor)
            if not rows:
                continue
            if holder == rank:
                source = held.mine[part][tensor.path]
                for peer, other, common in needed.overlapping(rows, tensor):
                    run = _slice(source, rows, common)
                    if peer == rank:
                        _slice(needed.mine[other][tensor.path], other.rows(tensor), common).copy_(run)
                    else:
                        outgoing.add(peer, run)
            else:
                for other, mine in sorted(needed.mine.items(), key=itemgetter(0)):
                    if common := intersection(rows, other.rows(tensor)):
                        incoming.add(holder, _slice(mine[tensor.path], other.rows(tensor), common))
    if group is not None:
        _communicate(outgoing, incoming, group)


def _communicate(outgoing: _Messages, incoming: _Messages, group: dist.ProcessGroup) -> None:
    works, received = [], []
    for peer, message, runs in incoming.gathered():
        works.append((dist.irecv(message, group=group, group_src=peer), message))
        received.append((message, runs))
    for peer, message, runs in outgoing.gathered():
        if runs:
            torch.cat(runs, out=message)
        works.append((dist.isend(message, group=group, group_dst=peer), message))
    for work, message in works:
        assert work is not None
        wait_for_message(work, message)
    for message, runs in received:
        if runs:
            for run, piece in zip(runs, message.split([run.numel() for run in runs]), strict=True):
                run.copy_(piece)


def _slice(tensor: torch.Tensor, rows: range, common: range) -> torch.Tensor:
    """The common rows of a tensor that consists of these rows of another."""
    return tensor[common.start - rows.start : common.stop - rows.start]


def _batches(tensors: Sequence[SplitTensor], limit_bytes: int) -> Iterator[list[SplitTensor]]:
    """The tensors in order, gathered until a batch is full; a large one goes alone."""
    batch: list[SplitTensor] = []
    size = 0
    for tensor in tensors:
        bytes_ = tensor.num_rows * tensor.row_bytes
        if batch and size + bytes_ > limit_bytes:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += bytes_
    if batch:
        yield batch


def gather_documents(document: Any, group: dist.ProcessGroup | None, world_size: int) -> list[Any]:
    """Collective: the JSON documents of all ranks, in their order. Raises `GroupError` when a rank is gone."""
    if group is None:
        return [document]
    text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8)
    try:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
        dist.all_gather(lengths, torch.tensor([text.numel()]), group=group)
        longest = max(int(length) for length in lengths)
        texts = [torch.empty(longest, dtype=torch.uint8) for _ in range(world_size)]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - text.numel())), group=group)
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while the ranks told each other what they have: {error}") from error
    return [json.loads(bytes(text[:length].tolist())) for text, length in zip(texts, lengths, strict=True)]
