"""Prompts in progress: a new load leaves free the blocks that they still need.

A request counts from the start of its load, or from an admission that leaves prompt to compute,
until a whole step with its last prompt token is decided, or until it has no blocks.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def begin_prefill(state: Replica, k: int) -> None:
    """Record that a request has prompt left to load or to compute."""
    connector = state.connector
    for at in range(connector.num_prefills):
        if connector.prefills[at] == k:
            return
    connector.prefills[connector.num_prefills] = k
    connector.num_prefills += 1


def end_prefill(state: Replica, k: int) -> None:
    """Record that a request has no prompt left, or no more blocks."""
    connector = state.connector
    for at in range(connector.num_prefills):
        if connector.prefills[at] == k:
            connector.num_prefills -= 1
            connector.prefills[at] = connector.prefills[connector.num_prefills]
            return


def note_prefill(state: Replica, k: int) -> None:
    """Record an admission if its first tokens do not complete the prompt."""
    if state.requests[k].num_computed_tokens < state.requests[k].num_prompt_tokens:
        begin_prefill(state, k)


def end_prefills(state: Replica, batch: Batch) -> None:
    """Remove the requests with their last prompt token in the step just scheduled."""
    if state.connector.num_prefills == 0:
        return
    for at in range(batch.size):
        k = batch.entries[at].request
        if state.requests[k].num_computed_tokens >= state.requests[k].num_prompt_tokens:
            end_prefill(state, k)
