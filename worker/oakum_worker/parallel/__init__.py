"""How the ranks of a generation work together on one step, and how one gives its state to the others.

Each module takes the process group it is given and forms none itself. When a rank is lost they raise `GroupError`;
who is a member, and what happens next, is decided elsewhere.
"""
