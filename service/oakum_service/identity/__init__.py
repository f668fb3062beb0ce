"""Who somebody is without a token: by the kernel's word, at the Unix socket.

An `Identity` never has the role `hook`, so that nobody speaks for the main scheduler because of a name.
"""
