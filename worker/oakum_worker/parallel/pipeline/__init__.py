"""Pipelines: trainers whose model is spread over several ranks, stage by stage.

`operations` defines a schedule, which is data without torch. `schedules` builds schedules, `validation` checks
them and `simulation` times them. Engines run a schedule, or react to the messages that arrive. Between generations
the layers' state moves from rank to rank by parameter name. Which ranks there are is decided elsewhere.
"""
