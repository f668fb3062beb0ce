"""Turns logs of the main scheduler into holes: reads logs, places jobs on nodes, finds the idle intervals.

All values are in seconds and nodes. The only I/O is to read a log and to write an idle log; nothing here knows the
planner, the database or a live scheduler.
"""
