"""Tensor parallelism: each rank of a grid has a block of every weight and of every activation.

`grids` numbers the ranks, `placements` says which block of a parameter a rank has, `conversion` is the plan for
one model on one grid, and `convert` makes it from a plain model. While such a model computes, its tensors are
*spread* tensors (`spread`), on which torch's functions work by the rules in `operations`. Nothing here knows
trainers, optimizers, batches of a data set or the state of a trainer.
"""
