"""A fragment: one scheduler job on one node, whose agent owns the node's rank processes.

Imports no torch, so that an agent answers signals at once and ranks begin before it has imported anything.
"""

CONFIG_NAME = "fragment.json"
"""Name of the config's file. Defined here because a fragment's process needs it before its imports."""
START_OPTIONS = frozenset({"ranks_per_node", "threads_per_rank"})
"""Options of the spec that a fragment's config always has: its ranks are started by them before the spec, which
knows defaults, is imported."""
