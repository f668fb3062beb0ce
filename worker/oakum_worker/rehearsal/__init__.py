"""A trainer's rehearsal: finds, before training begins, what would silently make it depend on the number of nodes.

`rehearse` reads a few samples twice, computes their loss as a whole and in parts, and checks which values that has
changed. Afterwards it restores weights, buffers, random generators, attributes and the task's own state.
"""

from oakum_worker.rehearsal.rehearsing import rehearse, rehearse_and_warn, splits_batches

__all__ = ["rehearse", "rehearse_and_warn", "splits_batches"]
