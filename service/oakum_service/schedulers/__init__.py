"""The main scheduler behind one small interface. `port` holds the interface and its values; the other modules
implement it.

An adapter reads the scheduler's state and starts or ends our own jobs. It takes no decisions about trainers.
"""
