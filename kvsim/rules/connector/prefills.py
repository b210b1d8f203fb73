"""Prompts in progress; a new load must not use the blocks that these prompts still need.

A prompt is in progress from the start of its load, or from an admission that does not complete it.
It ends when the step with its last token is scheduled, or when the request loses its blocks.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def begin_prefill(state: Replica, k: int) -> None:
    """Record that a request has prompt tokens left to load or to compute."""
    connector = state.connector
    for at in range(connector.num_prefills):
        if connector.prefills[at] == k:
            return
    connector.prefills[connector.num_prefills] = k
    connector.num_prefills += 1


def end_prefill(state: Replica, k: int) -> None:
    """Remove a request from the prompts in progress, if it is one of them."""
    connector = state.connector
    for at in range(connector.num_prefills):
        if connector.prefills[at] == k:
            connector.num_prefills -= 1
            connector.prefills[at] = connector.prefills[connector.num_prefills]
            return


def record_prefill(state: Replica, k: int) -> None:
    """Record an admitted prompt if its first tokens do not complete it."""
    if state.requests[k].num_computed_tokens < state.requests[k].num_prompt_tokens:
        begin_prefill(state, k)


def end_prefills(state: Replica, batch: Batch) -> None:
    """Remove from the prompts in progress those that the step just scheduled completes."""
    if state.connector.num_prefills == 0:
        return
    for at in range(batch.size):
        k = batch.entries[at].request
        if state.requests[k].num_computed_tokens >= state.requests[k].num_prompt_tokens:
            end_prefill(state, k)
