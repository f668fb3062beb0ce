"""Jobs of some GPUs on a real Slurm whose nodes jobs share: what is drawn, what fills the rest, what came of it.

`bench/slurm.py --gpus` runs it. Nothing here computes: trainers' steps sleep, since the nodes share one machine.
"""
