"""Invariants of memory, recounted after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.registry import engine_by_policy
from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.record import NONE
from kvsim.records.request import PREEMPTED, WAITING

if TYPE_CHECKING:
    from kvsim.engine.replica import Replica


class Checker:
    """Recounts all memory of a replica after every step."""

    def scheduled(self, replica: Replica) -> None:
        """Recount after a step was scheduled."""
        self.completed(replica)

    def completed(self, replica: Replica) -> None:
        """Recount after a step has ended."""
        replica.check_integrity()
        check_no_leak(replica)


def check_no_leak(replica: Replica) -> None:
    """Compare the memory held with the tokens that live requests have computed.

    Raises
    ------
    RuntimeError
        If more tokens are held than live requests have, or any memory while no request is live.
    """
    state, usage = replica.state, replica.kv.usage
    live = replica.held_requests()
    num_tokens = sum(request.num_computed_tokens * request.num_samples for request in live)
    connector = state.connector
    if connector.kind != NO_CONNECTOR:  # requests with loaded KV that are not admitted yet
        loaded = [
            r for r in state.requests if r.status in (WAITING, PREEMPTED) and r.own_blocks != NONE
        ]
        live = [*live, *loaded]
        num_tokens += sum(request.num_tokens for request in loaded)
    copies = engine_by_policy(state.limits.scheduler).copied_tokens(state)
    num_tokens += sum(copies)
    config = replica.setup.kv_config
    stored = sum(layer.bytes_per_token for layer in config.layout.layers)
    most = num_tokens * stored + len(live) * config.state_bytes
    # In a model with states, each further step in flight may hold one more state per request.
    groups = [state.kv.groups[g] for g in range(state.kv.num_groups)]
    most += len(live) * (state.limits.depth - 1) * sum(group.state_bytes for group in groups)
    held = usage.token_states + usage.reservation + usage.internal
    # Blocks for KV transfers, or of a step in flight whose output no request needs any more.
    waits = (
        connector.waiting_for_kv.length + connector.num_pinned + connector.num_fenced + len(copies)
    )
    if held and not (live or state.num_swapped or state.num_retired or waits):
        raise RuntimeError(f"{held} bytes are held, and no request is alive")
    if usage.token_states > most:
        raise RuntimeError(
            f"{usage.token_states} bytes of live tokens are held, where live requests have "
            f"{num_tokens} tokens, {most} bytes: has an ended request kept its memory?"
        )
