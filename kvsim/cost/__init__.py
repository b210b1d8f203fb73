"""Cost models: the time of a step on a GPU."""
