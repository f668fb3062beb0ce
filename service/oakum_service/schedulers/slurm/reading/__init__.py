"""Turns Slurm's answers, in the form of any version, into one `SlurmState`."""
