"""`oakum demo digits`: a page on which handwritten digits are recognised and encoded while the networks train.

`chain` submits the trainers of examples/rbm, `networks` reads their newest weights, `follower` repeats both, and
`pages` serves the page in `static/`, which computes the networks itself. It is a client of the service like any
other command; nothing here reads the database.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "static"
