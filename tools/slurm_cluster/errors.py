"""The package's exception."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot be made, found or ended; the message says why and what to do."""
