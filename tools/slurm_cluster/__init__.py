"""A real Slurm of several virtual nodes on one Linux machine: for the tests, and to try Oakum on.

Everything it makes lies in one folder, each daemon runs in a mount namespace of its own, each node in a UTS
namespace with the node's name as hostname; nothing in /etc changes, and several clusters may run side by side.
What Oakum itself does on Slurm is in `oakum_service.schedulers.slurm`; nothing here imports it.
"""
