"""One replica: its parts, its state and loop, and the history of its blocks."""
