"""A loop of one's own: the user's script has the loop, and Oakum trains it on nodes that come and go."""
