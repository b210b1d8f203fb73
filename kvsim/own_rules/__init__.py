"""A user's rules: a class of functions over declared state, as Python and compiled."""
