"""What the nodes did, in the forms that pictures of many nodes over a long time need."""
