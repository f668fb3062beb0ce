"""The libraries' whole surface: what becomes of each of their public names under an adapter.

`verdicts` has the three answers: supported, refused, or works and means something else. `tables` holds a table
against the installed library. Each further module has the tables of one library, which docs/libraries.md shows.
"""
