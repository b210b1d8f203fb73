"""Schedulers to compare vLLM with: Orca, static batching, and vLLM before V1."""
