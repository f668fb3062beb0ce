"""Slurm as a scheduler of Oakum.

`reading` fetches Slurm's state in whatever version and form and parses it; `snapshot` turns the state into holes
and our own jobs; `scheduler` keeps the snapshot up to date and starts our jobs; `hooks` are what Slurm calls;
`preflight` checks a site. Nothing here takes decisions about trainers.
"""
