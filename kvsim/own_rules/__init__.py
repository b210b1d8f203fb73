"""A user's rules: a class with declared state and methods, which runs as Python or compiled."""
