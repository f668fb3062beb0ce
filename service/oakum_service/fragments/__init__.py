"""What surrounds a fragment: the config it starts with, its trainer's files, and what its processes wrote."""
