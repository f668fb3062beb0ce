"""The place where a generation's ranks meet: a key-value store in rank 0's process that answers members alone.

torch's own store answers whoever reaches its port, and an account of the same machine always does. This one has a
caller prove that it knows the generation's secret, which the service gives to the members' agents, and proves it
in turn; nobody else can list, read or set anything, nor stand in for the store. gloo has no such proof, so the
members prove it to each other once a group is connected, before anything else is sent (`proofs`).

- `proofs`: what is computed from the secret;
- `addresses`: the address on which a rank listens;
- `store_server`: the store;
- `store_client`: torch's interface to it.
"""
