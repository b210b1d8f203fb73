"""Rules of eviction policies."""
