"""How a trainer's state outlives generations, ranks and nodes: a `Keeper` for each kind of state.

`keeper` defines the interface of all keepers, and the interfaces of the training loop and the process that keepers
use. Keepers move and save states; they decide neither who is a member nor how a step is computed.
"""
