"""Tensor-parallel trainers: grids of ranks that hold one copy of the model each, and come and go.

`oakum_worker.parallel.tensor` computes on one grid. Here are the grids of a generation and how they are chosen, a
trainer's state in blocks, and the engine of its steps.
"""
