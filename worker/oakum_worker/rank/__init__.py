"""A rank process: warms up, then trains through one generation after another, and keeps the trainer's state.

`process` is the entry point; it puts the training loop, the keeper and the generation's group together.
"""
