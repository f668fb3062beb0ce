"""A strategy that is not Oakum's own: the ranks send their gradients to rank 0, as to a parameter server, and
get the sum back.

All of it is in this folder. Importing `star.task`, as a rank does for its entrypoint, registers the strategy.
"""
