"""Names of blocks in KV cache events: vLLM's chain of SHA-256 over their tokens."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from typing import Any


def digest(value: Any) -> bytes:
    """Return the hash that vLLM's ``sha256`` gives to a value."""
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


#: Parent of the first block of a prompt.
SEED = digest("vllm-none-hash")


def sent(name: bytes) -> int:
    """Return the last 64 bits of a hash, which events carry."""
    return int.from_bytes(name[-8:], "big")


class BlockNames:
    """Replaces an engine's block numbers by hashes that depend on tokens alone.

    Two engines may give different blocks the same number; an index over both would confuse them.
    """

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}
        self._copies = Counter[int]()

    def rename(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with hashes in place of block numbers. Mutates."""
        if event["type"] == "BlockStored":
            return event | self._stored(event)
        if event["type"] == "BlockRemoved":
            return event | {"block_hashes": [self._removed(one) for one in event["block_hashes"]]}
        self._names.clear()
        self._copies.clear()
        return event

    def _stored(self, event: dict[str, Any]) -> dict[str, Any]:
        numbers, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        extra = event.get("extra_keys") or [None] * len(numbers)
        above, names = event["parent_block_hash"], []
        parent = SEED if above is None else self._name(above)
        found = {"parent_block_hash": None if above is None else sent(parent)}
        for k, number in enumerate(numbers):
            keys = None if extra[k] is None else tuple(extra[k])
            parent = digest((parent, tuple(tokens[k * size : (k + 1) * size]), keys))
            self._names[number] = parent
            self._copies[number] += 1
            names.append(sent(parent))
        return found | {"block_hashes": names}

    def _removed(self, number: int) -> int:
        name = self._name(number)
        self._copies[number] -= 1
        if self._copies[number] <= 0:
            del self._copies[number]
            self._names.pop(number, None)
        return sent(name)

    def _name(self, number: int) -> bytes:
        """Return the hash of a stored block, or that of its number if it was never stored."""
        found = self._names.get(number)
        return digest(number) if found is None else found
