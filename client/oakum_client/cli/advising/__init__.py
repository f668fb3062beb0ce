"""Turns measurements into the advice of `oakum advise`: chooses, writes the advice as text, and edits the spec."""
