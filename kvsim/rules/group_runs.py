"""Runs of decode steps for requests with several block tables, or with windows or states.

A run skips a request until it needs bookkeeping. At that step the request's counts are updated, and
it grows as in a single step, in the order of the running list. Between such steps windows move
within blocks: the dead bytes of all requests grow by a constant number per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.policies import TENSORRT_LLM, VLLM
from kvsim.records.kv import PAGED
from kvsim.records.paged import FULL
from kvsim.rules.blocks.attention import num_keys
from kvsim.rules.blocks.mamba import begin_states, release_copies
from kvsim.rules.blocks.paged import grow, need_to_grow
from kvsim.rules.blocks.window import leaves_block, move_own_windows, move_windows

if TYPE_CHECKING:
    from kvsim.records.cost import Layers
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV


def has_groups(kv: KV) -> bool:
    """Return True if the tables of a request may grow differently: several groups, or windows."""
    return kv.num_groups > 1 or kv.has_windows


def groups_can_run(state: Replica) -> bool:
    """Return True if windows and states change predictably, and nothing reads them at each step."""
    kv = state.kv
    if (
        state.limits.scheduler not in (VLLM, TENSORRT_LLM)
        or kv.manager != PAGED
        or kv.replay_window > 0
    ):
        return False
    # Dead slots of shared blocks, and memory maps, depend on the current state of every request.
    return kv.pool.num_shared == 0 and state.num_bins == 0


def begin_groups(state: Replica) -> None:
    """Set, for each running request, the first step of a run at which it needs bookkeeping."""
    kv = state.kv
    kv.dead_rate = 0
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        state.due[place] = request.next_bookkeeping_at - request.num_computed_tokens
        kv.dead_rate += kv.request_blocks[request.own_blocks].dead_rate


def catch_up(state: Replica, place: int, step: int) -> None:
    """Bring the token counts of a running request up to date for the start of step ``step``."""
    request, steps = state.requests[state.running[place]], step - state.reached[place]
    request.num_computed_tokens += steps
    request.num_tokens += steps
    state.reached[place] = step


def has_room(state: Replica, step: int, tries: bool) -> bool:
    """Return True if enough blocks are free for a step of a run.

    Blocks that windows free in the same step do not count, so a run may end early. With ``tries``,
    every step tries to admit the head of the queue, which could use a block that a window frees; if
    a window frees one, return False.
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
    """Grow the requests that need bookkeeping in a step; False if the run must end before it."""
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
        elif kv.has_windows:  # perhaps by more than one token
            move_windows(kv, request, own_blocks)
        if state.due[place] <= step:
            grow(kv, request, request.num_computed_tokens + 1)
            state.due[place] = step + request.next_bookkeeping_at - request.num_computed_tokens
        kv.dead_rate += own_blocks.dead_rate
    if kv.has_states:
        release_copies(kv)
    return True


def finish_run(state: Replica, place: int, steps: int) -> None:
    """Advance a running request and its windows to the end of a run of ``steps`` steps."""
    request = state.requests[state.running[place]]
    catch_up(state, place, steps - 1)
    if state.kv.has_windows:
        move_own_windows(state.kv, request, state.kv.request_blocks[request.own_blocks])
    catch_up(state, place, steps)
    state.reached[place] = 0


def count_keys(state: Replica, layers: Layers, step: int) -> int:
    """Count the keys that layers attend to in a step of a run."""
    if layers.kind == FULL:
        return layers.decode_keys + state.num_running
    keys = 0
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        computed = request.num_computed_tokens + step - state.reached[place]
        keys += num_keys(layers.kind, layers.window, computed, 1)
    return keys
