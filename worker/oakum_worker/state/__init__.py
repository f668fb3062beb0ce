"""A trainer's state at a step boundary: captures it, copies what a step may change early, and takes it apart
for storing and sending."""
