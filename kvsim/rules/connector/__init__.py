"""Rules of vLLM's KV connectors."""
