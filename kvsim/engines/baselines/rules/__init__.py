"""Rules of the schedulers that vLLM is compared with."""
