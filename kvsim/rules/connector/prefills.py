"""Prompts under way beside loads: a load that begins leaves them the blocks that they still need.

A request is one from the start of its load, or from an admission that leaves prompt to compute. It
is one no more once a whole step is decided that has its last prompt token, or without blocks.

docs/vllm-rules.md tells the rules in words, section 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def begin_prefill(state: Replica, k: int) -> None:
    """Note that a request has prompt left to load or to compute."""
    connector = state.connector
    for at in range(connector.num_prefills):
        if connector.prefills[at] == k:
            return
    connector.prefills[connector.num_prefills] = k
    connector.num_prefills += 1


def end_prefill(state: Replica, k: int) -> None:
    """Note that a request has none left, or no blocks any more."""
    connector = state.connector
    for at in range(connector.num_prefills):
        if connector.prefills[at] == k:
            connector.num_prefills -= 1
            connector.prefills[at] = connector.prefills[connector.num_prefills]
            return


def note_prefill(state: Replica, k: int) -> None:
    """Note an admission: whether its first tokens leave some of the prompt."""
    if state.requests[k].num_computed_tokens < state.requests[k].num_prompt_tokens:
        begin_prefill(state, k)


def end_prefills(state: Replica, batch: Batch) -> None:
    """Note whose last prompt token the step just decided has."""
    if state.connector.num_prefills == 0:
        return
    for at in range(batch.size):
        k = batch.entries[at].request
        if state.requests[k].num_computed_tokens >= state.requests[k].num_prompt_tokens:
            end_prefill(state, k)
