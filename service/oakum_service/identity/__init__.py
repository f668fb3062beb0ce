"""Who somebody is, by a token or by the kernel's word at the Unix socket, and who did what, in the audit log.

An `Identity` never has the role `hook`, so that nobody speaks for the main scheduler because of a name.
"""
