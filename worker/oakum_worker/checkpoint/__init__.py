"""States on disk, from which a trainer goes on after its last replica has gone.

Nothing here knows what a state means: it is a tree of tensors and plain values. A checkpoint is whole and verified
or it does not count.
"""
