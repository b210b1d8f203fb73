"""Rules of the schedulers to compare vLLM with."""
