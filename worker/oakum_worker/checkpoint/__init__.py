"""States on disk, from which a trainer goes on after its last replica has gone.

Modules of this folder know a state only as a tree of tensors and plain values. A checkpoint that is not whole and
verified does not count.
"""
