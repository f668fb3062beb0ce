"""What `oakum check` looks at before Oakum runs on a Slurm cluster.

`facts` asks Slurm, `plugins`, `preemption` and `limits` judge what it answered and touch nothing, `node` tries a
job. Each finding says what was found and the line that changes it; nothing here changes anything itself.
"""
