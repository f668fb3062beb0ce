"""Grids of ranks as the stages of a pipeline: each layer belongs to a stage, and is computed on the stage's grid.

The workers of a pipeline's arrangement are grids. The ranks with the same place in their grids form pipelines of
their own, side by side, whose layers compute together within each grid. Modules of `pipeline` and `grids` do both
parts; what lives here puts them together.
"""
