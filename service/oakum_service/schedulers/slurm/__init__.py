"""Slurm behind the scheduler port.

`state` holds what Slurm says, whatever version says it; `reader_*` modules fetch and parse it, `snapshot` turns it
into holes, `scheduler` keeps it up to date and starts our jobs. Nothing here decides about trainers.
"""
