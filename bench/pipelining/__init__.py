"""Pipelines of layers that sleep, so that many workers overlap on few processors, and processes for them."""
