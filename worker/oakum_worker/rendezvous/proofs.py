"""What members of a generation compute from its secret, so that each knows that the other is one."""

from __future__ import annotations

import hmac
from datetime import timedelta

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError

NONCE_BYTES = PROOF_BYTES = 32
_PATIENCE = timedelta(seconds=10)
"""Time for the proofs of ranks that have just connected to each other."""


def proof(secret: bytes, role: str, generation: int, at: tuple[str, int], *nonces: bytes) -> bytes:
    """Proof that who plays `role` knows the secret of a generation, for a connection to the store `at` an address
    and a port: one that somebody between the two hands on is for another. The nonces of both sides keep it from
    being used a second time. Returns `PROOF_BYTES` bytes."""
    host, port = at
    message = b"|".join((role.encode(), f"{generation} {host} {port}".encode(), *nonces))
    return hmac.digest(secret, message, "sha256")


class Seal:
    """Tells the messages of a proven connection, in one of its directions, from those of anybody who came between
    its ends."""

    def __init__(self, secret: bytes, role: str, *nonces: bytes) -> None:
        """`role` is who sends the messages."""
        self._key = hmac.digest(secret, b"|".join((b"messages of the " + role.encode(), *nonces)), "sha256")
        self._count = 0

    def of(self, message: bytes) -> bytes:
        """The seal of the direction's next message: `PROOF_BYTES` bytes."""
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "big") + message, "sha256")


def confirm_members(group: dist.ProcessGroup, rank: int, size: int, name: str, secret: bytes) -> None:
    """Have each pair of a group's ranks prove to each other, over the connection between them, that they know the
    generation's secret. Collective. `rank` is the caller's in the group, whose `name` no other group of the
    generation has.

    gloo takes the first who connects for the rank that was to come. Raises `GroupError` where that was somebody
    else, or where a rank is gone.
    """
    own_proofs = torch.tensor([[*_of_pair(secret, name, rank, other)] for other in range(size)], dtype=torch.uint8)
    their_proofs = torch.zeros_like(own_proofs)
    try:
        group.alltoall_base(their_proofs, own_proofs, [], []).wait(_PATIENCE)
    except RuntimeError as error:
        raise GroupError(f"the members of the group {name} could not prove who they are: {error}") from error
    for other in range(size):
        if not hmac.compare_digest(bytes(their_proofs[other].tolist()), _of_pair(secret, name, other, rank)):
            raise GroupError(f"rank {other} of the group {name} does not know the secret of the generation")


def _of_pair(secret: bytes, name: str, of: int, to: int) -> bytes:
    return hmac.digest(secret, f"rank {of} of {name} to rank {to}".encode(), "sha256")
