"""Measures for the advisor the memory and time of a task as it is, and of other algorithms for its layers.

The solver (`oakum_solver.advice`) chooses among what was measured; the service's command puts both together.
"""
