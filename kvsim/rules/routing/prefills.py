"""The time of a prompt's steps on an idle replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.price import price
from kvsim.rules.python import python_prefill_time

if TYPE_CHECKING:
    from kvsim.records.routing import PrefillPrice


def whole_prefill_time(prefill: PrefillPrice, num_tokens: int, num_cached: int) -> float:
    """Return the seconds to compute a prompt of which ``num_cached`` tokens are cached.

    At least the last token is computed. Each step has one chunk of the prompt.
    """
    replica, seconds = prefill.replica, 0.0
    batch, done = replica.batches[0], min(num_cached, num_tokens - 1)
    entry = batch.entries[0]
    while done < num_tokens:
        chunk = min(prefill.most_tokens, num_tokens - done)
        done += chunk
        entry.num_tokens, entry.end = chunk, done
        entry.unfinished = 1 if done < num_tokens else 0
        seconds += price(replica, batch)
    return seconds


def computing_seconds(prefill: PrefillPrice, num_tokens: int, num_cached: int) -> float:
    """Return :func:`whole_prefill_time`, or what the fleet's function in Python returns."""
    if prefill.is_python:
        return python_prefill_time(prefill, num_tokens, num_cached)
    return whole_prefill_time(prefill, num_tokens, num_cached)
