"""Slurm's hooks on the head node and on the nodes: the shell scripts, their installation, and the record of what
they report.

The scripts in `scripts` are POSIX sh; `installation` replaces their names between @ signs. The API receives what
they send, `event_writer` and `rows` record it. No Python of the service runs in a hook.
"""
