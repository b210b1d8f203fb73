"""Optional features of vLLM's scheduler, a file each: options, state and hooks."""
