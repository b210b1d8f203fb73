"""LoRA adapters under SGLang: which requests may join a batch, and the adapters' buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.adapters import Adapters
    from kvsim.records.engine import Batch, Replica


def place_in(rows: list[int], count: int, adapter: int) -> int:
    """Return the first index of an adapter among the first items of a list, or NONE."""
    for place in range(count):
        if rows[place] == adapter:
            return place
    return NONE


def open_adapters(state: Replica) -> None:
    """List the adapters of running requests, and of requests admitted so far in the pass."""
    scheduler, adapters = state.engines.sglang, state.engines.sglang.adapters
    adapters.num_batch = 0
    for place in range(scheduler.num_running):
        join_adapter(adapters, state.requests[scheduler.running[place]].lora)
    for place in range(scheduler.num_admitted):
        join_adapter(adapters, state.requests[scheduler.admitted[place]].lora)


def join_adapter(adapters: Adapters, adapter: int) -> None:
    """Add an adapter to the adapters of the batch."""
    if place_in(adapters.batch, adapters.num_batch, adapter) == NONE:
        adapters.batch[adapters.num_batch] = adapter
        adapters.num_batch += 1


def may_join(state: Replica, adapter: int) -> bool:
    """Return True if an adapter's requests may be admitted; start its load if it is missing."""
    adapters = state.engines.sglang.adapters
    if not adapters.overlaps:
        return list_wanted(adapters, adapter)
    now = time_of_loads(state)
    end_adapter_loads(adapters, now)
    if place_in(adapters.loading, adapters.num_loading, adapter) != NONE:
        return False
    if place_in(adapters.buffers, adapters.most, adapter) != NONE:
        return True
    if list_wanted(adapters, adapter):
        load_wanted(state)
        adapters.loading[adapters.num_loading] = adapter
        adapters.ready[adapters.num_loading] = now + adapters.load_time
        adapters.num_loading += 1
    return False


def time_of_loads(state: Replica) -> float:
    """Return the time in which adapter loads are measured: seconds, or passes in cases."""
    adapters = state.engines.sglang.adapters
    return float(adapters.num_passes) if adapters.by_passes else state.clock


def end_adapter_loads(adapters: Adapters, now: float) -> None:
    """Remove the loads that are done from the list."""
    kept = 0
    for place in range(adapters.num_loading):
        if adapters.ready[place] > now:
            adapters.loading[kept] = adapters.loading[place]
            adapters.ready[kept] = adapters.ready[place]
            kept += 1
    adapters.num_loading = kept


def list_wanted(adapters: Adapters, adapter: int) -> bool:
    """List the batch's adapters, adapters being loaded and ``adapter``; return True if all fit.

    An adapter of the batch always fits; pinned adapters keep their buffers.
    """
    adapters.num_wanted = 0
    for place in range(adapters.num_batch):
        want_adapter(adapters, adapters.batch[place])
    for place in range(adapters.num_loading):
        want_adapter(adapters, adapters.loading[place])
    num_others = adapters.num_wanted
    if place_in(adapters.wanted, num_others, adapter) != NONE:
        return True
    if num_others >= adapters.most:
        return False
    want_adapter(adapters, adapter)
    num_free = 0
    for place in range(adapters.num_wanted):
        one = adapters.wanted[place]
        num_free += place_in(adapters.pinned, adapters.num_pinned, one) == NONE
    return num_free <= adapters.most - adapters.num_pinned


def want_adapter(adapters: Adapters, adapter: int) -> None:
    """Insert an adapter into the sorted list of wanted adapters."""
    if place_in(adapters.wanted, adapters.num_wanted, adapter) != NONE:
        return
    place = adapters.num_wanted
    while place > 0 and adapters.wanted[place - 1] > adapter:
        adapters.wanted[place] = adapters.wanted[place - 1]
        place -= 1
    adapters.wanted[place] = adapter
    adapters.num_wanted += 1


def load_batch(state: Replica, batch: Batch) -> float:
    """Load the adapters of a batch that is launched; return the seconds for which it waits."""
    adapters = state.engines.sglang.adapters
    adapters.num_wanted = 0
    for at in range(batch.size):
        want_adapter(adapters, state.requests[batch.entries[at].request].lora)
    state.num_loras = adapters.num_wanted - (adapters.wanted[0] == 0)
    if adapters.overlaps:
        return 0.0
    load_wanted(state)
    return adapters.num_loaded * adapters.load_time


def load_wanted(state: Replica) -> None:
    """Mark the wanted adapters as used, and load each that has no buffer."""
    adapters = state.engines.sglang.adapters
    for place in range(adapters.num_wanted):
        mark_adapter(adapters, adapters.wanted[place])
    for place in range(adapters.num_wanted):
        adapter = adapters.wanted[place]
        if place_in(adapters.buffers, adapters.most, adapter) == NONE:
            at = buffer_for(adapters)
            adapters.buffers[at] = adapter
            adapters.loaded[adapters.num_loaded] = at
            adapters.num_loaded += 1
            state.totals.num_adapter_switches += adapter > 0


def mark_adapter(adapters: Adapters, adapter: int) -> None:
    """Append an adapter to the order of eviction; under fifo only a new one."""
    place = place_in(adapters.order, adapters.num_ordered, adapter)
    if place != NONE and adapters.is_fifo:
        return
    if place != NONE:
        remove_from_order(adapters, place)
    adapters.order[adapters.num_ordered] = adapter
    adapters.num_ordered += 1


def remove_from_order(adapters: Adapters, place: int) -> None:
    """Remove an adapter from the order of eviction."""
    adapters.num_ordered -= 1
    for later in range(place, adapters.num_ordered):
        adapters.order[later] = adapters.order[later + 1]


def buffer_for(adapters: Adapters) -> int:
    """Return the first empty buffer; if there is none, evict an adapter, the base model last."""
    place = place_in(adapters.buffers, adapters.most, NONE)
    if place != NONE:
        return place
    found = NONE
    for at in range(adapters.num_ordered):
        one = adapters.order[at]
        stays = place_in(adapters.wanted, adapters.num_wanted, one) != NONE
        stays = stays or place_in(adapters.pinned, adapters.num_pinned, one) != NONE
        if not stays and (found == NONE or adapters.order[found] == 0):
            found = at
    victim = adapters.order[found]
    remove_from_order(adapters, found)
    return place_in(adapters.buffers, adapters.most, victim)
