"""How the ranks of a generation train one step together, and how they pass state to each other.

`group` and `subgroups` form process groups; the other modules use the groups that they are given. All raise
`GroupError` when a rank is lost. Which ranks are members, and what happens after a loss, is decided elsewhere.
"""
