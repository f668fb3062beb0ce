"""The strategies by which a trainer's work and state are spread over its ranks: one module for each.

A strategy builds the three parts of a trainer that depend on it: the engine that computes steps, the state that
each rank holds, and the keeper that carries the state to the next generation. `registry` chooses it for a spec.
Nothing above this room asks which strategy a trainer has; a new one is a folder of its own and a registration.
"""
