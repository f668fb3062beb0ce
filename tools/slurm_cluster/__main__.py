"""`python -m slurm_cluster`."""

from slurm_cluster.cli import main

main()
