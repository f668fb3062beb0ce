"""The ranks among which this one trains: its number, their group, and their sums outside of steps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.reshard import gather_documents
from oakum_worker.parallel.waiting import all_reduce, refuse_cut, refuse_void


class Ranks:
    """The ranks of the present generation as one of them sees it; a rank alone before `join`."""

    def __init__(self, device: torch.device, *, passes_communicate: bool) -> None:
        self.device = device
        """Where this rank's collectives have their tensors."""
        self._passes_communicate = passes_communicate
        self.join(None, 0, 1)

    def join(self, group: dist.ProcessGroup | None, rank: int, world_size: int) -> None:
        """Be `rank` of `world_size` in `group` from now on; without a group, or with a size of 1, be alone."""
        self.group = group if world_size > 1 else None
        self.rank, self.world_size = rank, world_size

    def sums(self, *numbers: float) -> list[float]:
        """The sum over the ranks of each of the numbers, of which every rank gives as many. A collective. Raises
        `GroupError` where a rank is gone."""
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        if self.group is not None:
            with lost_peers("outside of a step"):
                all_reduce(tensor, self.group)
            refuse_void(self.device)
        return tensor.tolist()

    def has_any(self, fact: bool) -> bool:
        """Whether the fact holds on any rank. A collective. Raises `RuntimeError` or `GroupError` where a rank is
        gone."""
        number = torch.tensor([float(fact)], device=self.device)
        if self.group is not None:
            all_reduce(number, self.group)
            refuse_void(self.device)
        return bool(number.item())

    def gather(self, document: Any) -> list[Any]:
        """Every rank's document, by rank. A collective. Raises `GroupError` where a rank is gone."""
        return gather_documents(document, self.group, self.world_size)

    def refuse_what_is_void(self) -> None:
        """Raise `GroupError` if collectives on GPUs may have been aborted, which they do not report themselves.
        Waits for the GPU."""
        if self.group is not None:
            refuse_void(self.device)

    def refuse_what_void_has_caused(self) -> None:
        """As `refuse_what_is_void`, after an error, which results that are void may have caused."""
        if self.group is not None:
            refuse_cut(self.device)

    def lost_in_passes(self, when: str) -> AbstractContextManager[None]:
        """Context that turns errors of collectives into `GroupError`, whose message says `when`, for engines whose
        passes communicate; otherwise it does nothing."""
        return lost_peers(when) if self._passes_communicate else nullcontext()
