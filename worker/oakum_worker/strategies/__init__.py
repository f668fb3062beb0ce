"""What the strategies of `oakum_worker.strategy_table` build: a module or folder of the name of each.

Its `assemble` builds the three parts of a trainer that depend on the strategy: the engine that computes steps, the
state that each rank holds, and the keeper that carries the state to the next generation. `assembly` finds it for a
spec. A strategy is its record and what is here under its name; nothing else asks which one a trainer has. A folder
has its record, too, as `STRATEGY` in its `__init__`, which the service reads and which therefore imports no torch.
"""
