"""The main scheduler's workload: logs read, jobs placed on nodes, and the holes that they leave.

Everything is a value in seconds and nodes. Reading a log and handing an idle log on are the only I/O;
nothing here knows the solver, the database or a live scheduler.
"""
