"""What messages between ranks cost, and how that is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from oakum_worker.devices import waiting_clock
from oakum_worker.errors import GroupError
from oakum_worker.parallel.waiting import wait_for_message

_PINGS = 20
_LARGE_BYTES = 4 << 20
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Latency and bandwidth of a message between any two ranks."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds that a message of `num_bytes` takes, without the latency."""
        return num_bytes / self.bandwidth_bytes_per_s

    def all_reduce_s(self, num_ranks: int, num_bytes: float) -> float:
        """Seconds of an all-reduce of L = `num_bytes` over r = `num_ranks`: 2 log2(r) a + 2 (r-1) b L / r.

        a is the latency and b the seconds per byte (Rabenseifner; Chimera, arXiv:2107.06925, section 3.4).
        """
        if num_ranks < 2:
            return 0.0
        transfer_s = 2 * (num_ranks - 1) * self.transfer_s(num_bytes) / num_ranks
        return 2 * math.log2(num_ranks) * self.latency_s + transfer_s


USUAL_LINKS = LinkCosts(latency_s=100e-6, bandwidth_bytes_per_s=1e9)
"""Costs of links that are assumed until the links are measured."""


def measure_links(
    group: dist.ProcessGroup, rank: int, other: int = 1, device: torch.device = _CPU
) -> LinkCosts | None:
    """Measure latency and bandwidth between rank 0 and the rank `other`. Returns them on these two ranks, and None
    on all others. Collective among the ranks of `group`. Raises `GroupError` when a rank is gone.
    """
    if rank not in (0, other):
        return None
    peer = other - rank
    try:
        for _ in range(2):  # The first transfer opens connections and is not counted.
            latency_s = _round_trip_s(group, rank, peer, torch.zeros(1, device=device), _PINGS) / 2
        large_s = _round_trip_s(group, rank, peer, torch.zeros(_LARGE_BYTES // 4, device=device), 2) / 2
    except RuntimeError as error:
        raise GroupError(f"a rank was lost while links were measured: {error}") from error
    return LinkCosts(latency_s, _LARGE_BYTES / max(large_s - latency_s, 1e-9))


def _round_trip_s(group: dist.ProcessGroup, rank: int, peer: int, message: torch.Tensor, times: int) -> float:
    clock = waiting_clock(message.device)
    began_s = clock()
    for _ in range(times):
        for sender in sorted((rank, peer)):
            work = dist.isend if sender == rank else dist.irecv
            where = {"group_dst": peer} if sender == rank else {"group_src": peer}
            done = work(message, group=group, **where)
            assert done is not None
            wait_for_message(done, message)
    return (clock() - began_s) / times
