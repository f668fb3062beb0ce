"""The dashboard: nodes over time, a card for each trainer, the events; served by the service itself.

`static/` holds the page, its style and small ES modules, with no build step and nothing loaded from elsewhere. The
page is a client of the REST API like any other; nothing here reads the database.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "static"
