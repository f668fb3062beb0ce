"""Runs a real Slurm with several virtual nodes on one Linux machine, for tests and for trying Oakum.

All files are in one folder. Each daemon runs in its own mount namespace and each node in a UTS namespace with the
node's name as hostname, so nothing in /etc changes and several clusters can run side by side. Oakum's own code for
Slurm is in `oakum_service.schedulers.slurm`; nothing here imports it.
"""
