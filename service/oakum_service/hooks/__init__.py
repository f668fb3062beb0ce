"""Slurm's hooks on the head node and the nodes: `scripts`, and `installation`, which puts them in place.

The scripts are POSIX sh with names between @ signs to be filled in. What they send is taken in by `api.hooks`;
nothing here runs in the service, and nothing of the service runs in a hook.
"""
