"""The checks of `oakum check`, before Oakum runs on a Slurm cluster.

`facts` asks Slurm for its configuration; `plugins`, `preemption` and `limits` judge the answers; `node` runs a
small job. Each finding says what was found and which line to change. Nothing here changes the site.
"""
