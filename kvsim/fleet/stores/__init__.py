"""KV stores, one per file; each registers itself."""
