"""The limit on different LoRA adapters in a batch: the slots for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def record_loras(state: Replica) -> None:
    """List the adapters of all running requests, even of those not scheduled in this step."""
    state.num_loras = 0
    for place in range(state.num_running):
        add_lora(state, state.requests[state.running[place]])


def add_lora(state: Replica, request: Request) -> None:
    """Add a request's adapter to those of the batch."""
    if request.lora > 0 and not has_lora(state, request.lora):
        state.loras[state.num_loras] = request.lora
        state.num_loras += 1


def record_switch(state: Replica, request: Request) -> None:
    """Count an adapter switch if no request of the batch has the admitted request's adapter."""
    if request.lora > 0 and not has_lora(state, request.lora):
        state.totals.num_adapter_switches += 1


def has_lora(state: Replica, lora: int) -> bool:
    found = False
    for place in range(state.num_loras):
        found |= state.loras[place] == lora
    return found


def has_room_for_lora(state: Replica, request: Request) -> bool:
    """Return True if a request's adapter is in the batch, or may join it."""
    if request.lora == 0 or state.num_loras < state.num_lora_slots:
        return True
    return has_lora(state, request.lora)
