"""`oakum try`: run a trainer's code in one process before it is submitted, to find what would fail on the
nodes."""
