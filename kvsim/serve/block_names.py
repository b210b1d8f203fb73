"""Names of blocks in KV cache events: vLLM's chain of SHA-256 over their tokens."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def digest(value: Any) -> bytes:
    """Return the hash that vLLM's ``sha256`` gives to a value."""
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


#: Parent of the first block of a prompt.
SEED = digest("vllm-none-hash")


def sent(name: bytes) -> int:
    """Return the last 64 bits of a hash, which events carry."""
    return int.from_bytes(name[-8:], "big")


class Adapter(NamedTuple):
    """A loaded LoRA adapter: its number in the order of loads, from 1, and its path."""

    number: int
    path: str


def tagged(keys: Sequence[Any], lora: str | None, path: str) -> tuple[Any, ...]:
    """Return extra keys as vLLM hashes them: adapter, images and salt, each with its kind."""
    found: list[Any] = [] if lora is None else [("lora", lora, path)]
    others = keys[len(found) :]
    found += [("cache_salt", one) if isinstance(one, str) else ("mm", *one) for one in others]
    return tuple(found)


class BlockNames:
    """Replaces an engine's block numbers by hashes that depend on tokens and extra keys alone.

    Two engines may give different blocks the same number; an index over both would confuse them.

    Parameters
    ----------
    adapters : by name, the adapters loaded so far; an engine numbers them by their first requests
    """

    def __init__(self, adapters: Mapping[str, Adapter] | None = None) -> None:
        self._adapters = {} if adapters is None else adapters
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
        lora = event.get("lora_name")
        adapter = self._adapters.get(lora or "", Adapter(event.get("lora_id") or 0, ""))
        found = {"parent_block_hash": None if above is None else sent(parent)}
        found["lora_id"] = None if lora is None else adapter.number
        for k, number in enumerate(numbers):
            keys = None if extra[k] is None else tagged(extra[k], lora, adapter.path)
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
