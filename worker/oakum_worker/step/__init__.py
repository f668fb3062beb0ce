"""A training step (which samples, their loss and gradients, the new weights) and the loop that takes the steps."""
