"""Session policies: eviction policies that protect blocks between the turns of a session."""

from kvsim.kv.sessions import hints, pin, program, ttl

__all__ = ["hints", "pin", "program", "ttl"]
