"""Replays a log: computes what trainers would have trained in the holes of a recorded schedule."""
