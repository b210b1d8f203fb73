"""Rules of a user's: a class of functions over declared state, as Python and compiled."""
