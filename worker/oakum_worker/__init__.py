"""Trains: what runs on a node while Oakum holds it.

Here live the user's contract (`task`), the trainer spec, the messages between agent and service, the agent,
the rank processes with their generations, the step loop and the checkpoints. Nothing here knows FastAPI, the
database or the solver. `spec`, `protocol` and `launch` import without torch, because the service uses them.

Training does without `advice`, `profiling`, `recurrent` and `map_reduce`: methods that somebody asks for by name.
"""
