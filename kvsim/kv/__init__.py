"""KV-cache managers: block pool, block tables, prefix cache, contiguous allocations, windows."""
