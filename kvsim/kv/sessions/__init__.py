"""Session policies, a file each: which cached blocks are kept between the turns of a session."""

from kvsim.kv.sessions import hints, pin, program, ttl

__all__ = ["hints", "pin", "program", "ttl"]
