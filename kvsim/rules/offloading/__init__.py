"""Rules of vLLM's native KV offloading."""
