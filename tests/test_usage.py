"""The causes of waste: their names, their sum, the refused flag, memory maps."""

from __future__ import annotations

import pytest
from driving import kv_config, request

from kvsim.kv.paged import PagedManager
from kvsim.kv.usage import COLUMNS, HELD, Cause, KVUsage
from kvsim.records.engine import MemorySample, Replica
from kvsim.records.memory import Objects
from kvsim.rules.memory_map import paint_units
from kvsim.rules.recorder import pass_time, sample
from kvsim.sched.scheduler import SchedulerConfig
from kvsim.sched.vllm import VllmScheduler

USAGE = KVUsage(1, 2, 3, 4, 50, 7)


def test_the_names_are_those_of_the_public_tables() -> None:
    names = ["token_states", "reservation", "internal", "external", "free", "cached"]
    assert [cause.column for cause in COLUMNS] == names
    keys = ["token_states", "reservation", "internal_fragmentation", "external_fragmentation"]
    assert [cause.summary_key for cause in HELD] == keys
    assert sorted(COLUMNS) == sorted(Cause)


def test_what_is_free_is_external_while_the_head_stands_refused() -> None:
    """In samples, integrals and maps alike; what is cached stays so."""
    kv = PagedManager(kv_config(6, max_model_len=64))  # five blocks of four slots
    limits = SchedulerConfig(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64)
    scheduler = VllmScheduler(kv, limits)
    state = scheduler.state
    state.samples, state.maps = [MemorySample(), MemorySample()], [0] * 40
    state.num_bins = kv.total_bytes
    kv.room_for_map(state.kv, Objects())
    scheduler.add(request(0, 4, 1))
    scheduler.complete(scheduler.schedule(0.0), 0.0)  # its full block stays cached
    for one in (request(1, 5, 6), request(2, 16, 1)):
        scheduler.add(one)
    scheduler.schedule(0.0)
    assert scheduler.head_refused
    usage = kv.usage
    assert usage == (5, 3, 0, 0, 12, 4)
    sample(state)
    pass_time(state, 2.0)
    state.refused = False
    sample(state)
    pass_time(state, 5.0)
    columns = [cause.column for cause in COLUMNS]
    rows = [[getattr(row, name) for name in columns] for row in state.samples]
    assert rows == [[5, 3, 0, 12, 0, 4], [*usage]]
    causes = [state.maps[:20].count(cause) for cause in (*HELD, Cause.FREE, Cause.CACHED)]
    assert causes == [5, 3, 0, 8, 0, 4]
    causes = [state.maps[20:].count(cause) for cause in (*HELD, Cause.FREE, Cause.CACHED)]
    assert causes == [5, 3, 0, 0, 8, 4]
    totals = state.totals
    assert (totals.external_seconds, totals.unallocated_seconds) == (2 * 12, 5 * 12)
    assert (totals.cached_seconds, totals.token_states_seconds) == (5 * 4, 5 * 5)
    assert (totals.refused_seconds, totals.running_while_refused_seconds) == (2.0, 2.0)


def test_all_memory_has_a_cause() -> None:
    assert USAGE.held == (1, 2, 3, 4)
    USAGE.check(60)
    USAGE._replace(external=54, unallocated=0).check(60)
    with pytest.raises(RuntimeError, match=r"invariant 9: .* does not sum to 61"):
        USAGE.check(61)
    with pytest.raises(RuntimeError, match="invariant 9"):
        KVUsage(-1, 0, 0, 0, 1, 0).check(0)


def test_a_map_shows_the_middle_of_each_range() -> None:
    state = Replica()
    kv = state.kv
    kv.dead_ends, kv.live_ends, kv.last_ends = [0.25, 0.0], [0.5, 0.0], [0.75, 0.0]
    kv.unused = [Cause.INTERNAL, Cause.CACHED]
    internal, tokens, reserved = Cause.INTERNAL, Cause.TOKEN_STATES, Cause.RESERVATION
    first = [internal, tokens, reserved, internal]

    def painted(num_bins: int, num_units: int) -> list[int]:
        state.num_bins, state.maps = num_bins, [255] * num_bins
        paint_units(state, 0, num_bins, num_units, 0)
        return state.maps

    assert painted(8, 2) == [*first, *[Cause.CACHED] * 4]
    assert painted(2, 2) == [reserved, Cause.CACHED]
    assert painted(3, 0) == [Cause.FREE] * 3
