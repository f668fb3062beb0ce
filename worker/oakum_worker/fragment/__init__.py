"""A fragment: one scheduler job on one node, whose agent owns the node's rank processes.

Imports no torch, so that an agent answers signals at once and ranks begin before it has imported anything.
"""

CONFIG_NAME = "fragment.json"
"""Name of the config's file. Defined here because a fragment's process needs it before its imports."""
