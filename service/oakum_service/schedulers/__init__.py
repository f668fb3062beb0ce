"""The main scheduler, behind one small port. `port` holds its values and its interface; the rest are adapters.

An adapter reads state and starts or ends our own jobs. It takes no decisions about trainers.
"""
