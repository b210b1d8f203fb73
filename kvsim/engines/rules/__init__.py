"""Rules that call the rules of a replica's engine."""
