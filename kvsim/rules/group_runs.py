"""Runs of steps where requests have several tables, or tables of windows or states.

Such a request is left alone while it is quiet. At the step at which it no longer is, it is brought
up to date and grows by the rule, in its place in the running list; between such steps windows move
within blocks, by as many bytes per step for all requests together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.engine import VLLM
from kvsim.records.kv import PAGED
from kvsim.records.paged import FULL
from kvsim.rules.blocks.mamba import begin_states, release_copies
from kvsim.rules.blocks.paged import grow, need_to_grow
from kvsim.rules.blocks.window import leaves_block, move_own_windows, move_windows
from kvsim.rules.work import num_keys

if TYPE_CHECKING:
    from kvsim.records.cost import Layers
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV


def has_groups(kv: KV) -> bool:
    """Whether tables do not all grow alike, a block at a time."""
    return kv.num_groups > 1 or kv.has_windows


def groups_can_run(state: Replica) -> bool:
    """Whether what windows and states do can be foreseen, and nobody looks at each of them."""
    kv = state.kv
    if state.limits.scheduler != VLLM or kv.manager != PAGED or kv.replay_window > 0:
        return False
    # What is dead of a shared block, and what a memory map paints, is asked of every request.
    return kv.pool.num_shared == 0 and state.num_bins == 0


def begin_groups(state: Replica) -> None:
    """Note at which step of a run each running request is no longer quiet."""
    kv = state.kv
    kv.dead_rate = 0
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        state.due[place] = request.next_bookkeeping_at - request.num_computed_tokens
        kv.dead_rate += kv.request_blocks[request.own_blocks].dead_rate


def catch_up(state: Replica, place: int, step: int) -> None:
    """Bring a request's counts to where they are when a step of the run is scheduled."""
    request, steps = state.requests[state.running[place]], step - state.reached[place]
    request.num_computed_tokens += steps
    request.num_tokens += steps
    state.reached[place] = step


def has_room(state: Replica, step: int, tries: bool) -> bool:
    """Whether a step of a run has its blocks; and, if the queue's head waits, no window frees any.

    What windows free in the same step is left out, so a run may end sooner than it must.
    """
    kv, need = state.kv, 0
    for place in range(state.num_running):
        if state.due[place] > step:
            continue
        catch_up(state, place, step)
        request = state.requests[state.running[place]]
        own_blocks = kv.request_blocks[request.own_blocks]
        if tries and leaves_block(kv, request, own_blocks):
            return False
        need += max(need_to_grow(kv, request, own_blocks, request.num_computed_tokens + 1), 0)
    return need <= kv.pool.num_free


def tend_groups(state: Replica, step: int, tries: bool) -> bool:
    """Grow the requests that are not quiet in a step of a run; False if the run ends before it."""
    if not has_room(state, step, tries):
        return False
    kv = state.kv
    if kv.has_states:
        begin_states(kv)
    if step > 0:
        kv.dead_bytes += kv.dead_rate
    for place in range(state.num_running):
        if state.due[place] > step > 0:
            continue
        request = state.requests[state.running[place]]
        own_blocks = kv.request_blocks[request.own_blocks]
        kv.dead_rate -= own_blocks.dead_rate
        if step > 0:
            move_own_windows(kv, request, own_blocks)
        elif kv.has_windows:  # by more than a token, perhaps
            move_windows(kv, request, own_blocks)
        if state.due[place] <= step:
            grow(kv, request, request.num_computed_tokens + 1)
            state.due[place] = step + request.next_bookkeeping_at - request.num_computed_tokens
        kv.dead_rate += own_blocks.dead_rate
    if kv.has_states:
        release_copies(kv)
    return True


def leave_run(state: Replica, place: int, steps: int) -> None:
    """Bring a request, and its windows, to where so many steps leave them."""
    request = state.requests[state.running[place]]
    catch_up(state, place, steps - 1)
    if state.kv.has_windows:
        move_own_windows(state.kv, request, state.kv.request_blocks[request.own_blocks])
    catch_up(state, place, steps)
    state.reached[place] = 0


def count_keys(state: Replica, layers: Layers, step: int) -> int:
    """Count the keys that layers look at in a step of a run."""
    if layers.kind == FULL:
        return layers.decode_keys + state.num_running
    keys = 0
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        computed = request.num_computed_tokens + step - state.reached[place]
        keys += num_keys(layers.kind, layers.window, computed, 1)
    return keys
