"""The live endpoint: an engine in real time behind vLLM's HTTP protocol."""
