"""Handwritten digits by stacked restricted Boltzmann machines, in rounds of MapReduce, and then fine-tuned."""
