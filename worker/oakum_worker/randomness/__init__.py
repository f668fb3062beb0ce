"""Random numbers that follow from seed, step and sample, wherever a sample is computed."""
