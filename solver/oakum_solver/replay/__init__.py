"""A log replayed: what the holes of a recorded schedule would have trained."""
