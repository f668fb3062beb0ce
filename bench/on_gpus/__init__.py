"""What `bench/gpu.py` measures, each module in a process of its own that prints one JSON document."""
