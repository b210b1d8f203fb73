"""Rules that call those of the engine that a replica runs."""
