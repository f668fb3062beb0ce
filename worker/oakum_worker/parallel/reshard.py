"""Sends blocks of tensors from the ranks that hold them to those that need them, without building whole tensors.

Every rank computes from the parts alone what of its blocks goes where, so no rank has to ask or announce anything.
Tensors are sent one after the other. Small ones are packed into common messages, because each message costs a
round trip; large ones are sent and received in place, without a copy.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel.blocks import Block, Overlap
from oakum_worker.parallel.holdings import Part, Rows, SplitTensor
from oakum_worker.parallel.waiting import all_gather, wait_for_messages

_BATCH_BYTES = 32 << 20
_LARGE_BYTES = 1 << 18


@dataclass(frozen=True)
class PartLocations:
    """Which ranks hold (or need) each part of a state, and the memory of this rank's blocks."""

    ranks: Sequence[tuple[Part, int]]
    """(part, rank in the group) pairs in any order."""
    mine: Mapping[Part, Rows]

    @functools.cached_property
    def in_order(self) -> list[tuple[Part, int]]:
        """`ranks`, sorted by part and then by rank, so that all ranks go through them in one order."""
        return sorted(self.ranks)

    def overlapping(self, block: Block, tensor: SplitTensor) -> Iterator[tuple[int, Part, Overlap]]:
        """(rank, part, the elements that the part and `block` of `tensor` have in common) for each part that has
        any, in the same order on all ranks. `block` is the overlap's first block."""
        for part, rank in self.in_order:
            for common in block.common(part.block(tensor)):
                yield rank, part, common


class _Messages:
    """What one rank sends to (or receives from) its peers in one round: runs of elements in a fixed order."""

    def __init__(self) -> None:
        self._large: list[tuple[int, torch.Tensor]] = []
        self._small: dict[int, list[torch.Tensor]] = {}
        self._apart: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(elements, their copy that is a run) of elements that are not contiguous in memory."""

    def add(self, peer: int, elements: torch.Tensor) -> None:
        """Append elements that go to (or come from) `peer`."""
        run = elements.contiguous().view(-1)
        if not elements.is_contiguous():
            self._apart.append((elements, run))
        run = run.view(torch.uint8)
        if run.numel() >= _LARGE_BYTES:
            self._large.append((peer, run))
        else:
            self._small.setdefault(peer, []).append(run)

    def spread(self) -> None:
        """Copy received elements to the tensors that are not contiguous, which could not be received in place."""
        for elements, run in self._apart:
            elements.copy_(run.view_as(elements))

    def gathered(self) -> Iterator[tuple[int, torch.Tensor, list[torch.Tensor]]]:
        """Yield (peer, tensor to send or to receive into, runs of elements that belong in it) for each message.

        A small message's tensor is new, uninitialised memory for all its runs; the caller copies them into it
        or out of it. A large run is sent as it is: it is the message's tensor, and the list of runs is empty.
        """
        for peer, run in self._large:
            yield peer, run, []
        for peer, runs in self._small.items():
            yield peer, runs[0].new_empty(sum(run.numel() for run in runs)), runs


def exchange(
    tensors: Sequence[SplitTensor],
    held: PartLocations,
    needed: PartLocations,
    group: dist.ProcessGroup | None,
    rank: int,
    *,
    batch_bytes: int = _BATCH_BYTES,
) -> None:
    """Collective: fill the blocks of the needed parts from the held parts.

    Held parts must not overlap; several ranks may need one part. Blocks are contiguous tensors on the CPU.
    Messages of small tensors take up to `batch_bytes` of memory on each side. `group` None stands for a single
    rank. Raises `GroupError` when a rank is gone; the needed blocks are then undefined.
    """
    try:
        for batch in _batches([tensor for tensor in tensors if tensor.num_bytes], batch_bytes):
            _exchange_batch(batch, held, needed, group, rank)
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while the state was dealt anew: {error}") from error


def _exchange_batch(
    batch: Sequence[SplitTensor],
    held: PartLocations,
    needed: PartLocations,
    group: dist.ProcessGroup | None,
    rank: int,
) -> None:
    outgoing, incoming = _Messages(), _Messages()
    mine = sorted(needed.mine.items(), key=itemgetter(0))
    for tensor in batch:
        wanted = [(block, rows[tensor.path]) for part, rows in mine if (block := part.block(tensor))]
        # Sender and receiver loop over the held parts first, so that both pack a message in the same order.
        for part, holder in held.in_order:
            if holder != rank and not wanted:
                continue
            block = part.block(tensor)
            if not block:
                continue
            if holder == rank:
                source = held.mine[part][tensor.path]
                for peer, other, common in needed.overlapping(block, tensor):
                    if peer == rank:
                        needed.mine[other][tensor.path][common.second].copy_(source[common.first])
                    else:
                        outgoing.add(peer, source[common.first])
            else:
                for here, memory in wanted:
                    for common in block.common(here):
                        incoming.add(holder, memory[common.second])
    if group is not None:
        _communicate(outgoing, incoming, group)


def _communicate(outgoing: _Messages, incoming: _Messages, group: dist.ProcessGroup) -> None:
    messages: list[tuple[Any, torch.Tensor]] = []
    received = []
    for peer, message, runs in incoming.gathered():
        messages.append((dist.irecv(message, group=group, group_src=peer), message))
        received.append((message, runs))
    for peer, message, runs in outgoing.gathered():
        if runs:
            torch.cat(runs, out=message)
        messages.append((dist.isend(message, group=group, group_dst=peer), message))
    wait_for_messages(messages)
    for message, runs in received:
        if runs:
            for run, piece in zip(runs, message.split([run.numel() for run in runs]), strict=True):
                run.copy_(piece)
    incoming.spread()


def _batches(tensors: Sequence[SplitTensor], limit_bytes: int) -> Iterator[list[SplitTensor]]:
    """Group consecutive tensors into batches of about `limit_bytes`; a larger tensor is a batch of its own."""
    batch: list[SplitTensor] = []
    size = 0
    for tensor in tensors:
        bytes_ = tensor.num_bytes
        if batch and size + bytes_ > limit_bytes:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += bytes_
    if batch:
        yield batch


def gather_documents(document: Any, group: dist.ProcessGroup | None, world_size: int) -> list[Any]:
    """The JSON documents of all ranks, by rank. Collective. Raises `GroupError` when a rank is gone."""
    if group is None:
        return [document]
    text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8)
    try:
        lengths = all_gather(torch.tensor([text.numel()]), group)
        longest = max(int(length) for length in lengths)
        texts = all_gather(torch.nn.functional.pad(text, (0, longest - text.numel())), group)
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while the ranks told each other what they have: {error}") from error
    return [json.loads(bytes(text[:length].tolist())) for text, length in zip(texts, lengths, strict=True)]
