"""The main scheduler's workload: logs read, jobs drawn from a model, and the rule that starts them.

Everything is a value in seconds and nodes. Reading a file is the only I/O; nothing here knows the solver, the
database or a live scheduler.
"""
