"""The blocks that a hit lacked, by a look-up per KV-cache group right before an admission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.dispatch import KINDS
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.simulate import serve
from kvsim.records.kv import PAGED
from kvsim.rules.arrival import describe
from kvsim.rules.blocks.attention import cdiv, num_skipped
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.blocks.prefix import find_part
from kvsim.rules.kv import next_own_blocks

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.engine.replica import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import LookupSpec
    from kvsim.trace import Trace

#: Seconds before a step at which the run ends, so that no other step starts in between.
BEFORE = 1e-9


class Missing(NamedTuple):
    """The first block that a KV-cache group lacks.

    Parameters
    ----------
    kind : the kind of the layers, in words
    block : index in the prompt, in blocks from 0
    num_missing, num_needed : blocks that the hit lacks, and all blocks that it needs
    """

    kind: str
    block: int
    num_missing: int
    num_needed: int


def missing_blocks(config: Config, trace: Trace, row: int, time: float, hit: int) -> list[Missing]:
    """Return the blocks of a hit that a pool lacks right before a request is scheduled.

    Parameters
    ----------
    config : configuration of one replica with a paged KV cache
    trace : the requests
    row : row of the request
    time : time at which it is first scheduled, seconds
    hit : tokens of the expected hit
    """
    replicas: list[Replica] = []
    start = float(trace.arrival_time[0])
    until = {"backend": "python", "horizon": max(time - start - BEFORE, BEFORE)}
    setup = resolve_fleet(config.model_copy(update=until))
    serve(setup, trace, on_start=replicas.append)
    return _looked_up(replicas[0].state, row, hit)


def _looked_up(state: Any, row: int, hit: int) -> list[Missing]:
    kv: KV = state.kv
    if kv.manager != PAGED or kv.num_groups == 0:
        return []
    describe(state, state.probe, row)
    own, unit = next_own_blocks(kv), kv.hash_block_size
    extend_keys(own, state.probe, hit // unit, unit, kv.num_hash_lookahead_tokens)
    found = []
    for spec in kv.specs[: kv.num_specs]:
        per_block, most = spec.block_size // unit, hit // unit
        needed = _needed(spec, hit)
        missing = [
            place
            for place in needed
            if not find_part(kv, own, spec, place, min((place + 1) * per_block, most))
        ]
        if missing:
            kind = KINDS.all()[spec.kind].title
            found.append(Missing(kind, missing[0], len(missing), len(needed)))
    return found


def _needed(spec: LookupSpec, hit: int) -> range:
    """Return the indices of the blocks that a hit of ``hit`` tokens needs in a group."""
    is_state = KINDS.all()[spec.kind].is_state
    end = cdiv(hit, spec.block_size) if is_state else hit // spec.block_size
    return range(num_skipped(spec.kind, spec.window, hit) // spec.block_size, end)
