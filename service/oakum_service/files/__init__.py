"""The service's own files: who may use the data directory, and replacing what others may read at any moment."""
