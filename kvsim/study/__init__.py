"""Many runs for one question: sweeps of a space, and searches for a rate or a configuration."""
