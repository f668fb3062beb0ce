"""The `profile` commands: measure micro-batches and pipeline layouts of a trainer spec on this machine, before it
is submitted."""
