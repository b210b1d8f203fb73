"""Step time: what a step costs on a GPU."""
