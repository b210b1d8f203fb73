"""Break each of the engines' rules on purpose and see a test catch it: ``python tests/mutation.py``.

Every mutant is a copy of the package with one rule changed. It is caught if a recorded schedule no
longer comes out identical, or else if a test fails. The script prints the score and exits 1 if a
mutant lives. Arguments choose mutants by how their rule starts. ``--compiled`` plays a dozen mutants
by the compiled engine instead, which has to compile each for a minute, and runs no tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "sglang_rules",
    "sglang_pools",
    "storage",
    "fairness",
    "planner",
    "budget_parts",
    "server_memory",
    "rules",
    "runs",
    "block_pool",
    "kv_managers",
    "schedulers",
    "cases",
    "peer_bugs",
    "eviction",
    "offloading",
    "mamba",
    "connector",
    "encoder",
    "images",
    "kv_events",
    "scaling",
    "disaggregation",
    "changing_pools",
    "mixed_pool",
    "network",
    "lost_replicas",
    "load",
)


#: Ends the tests' conftest: they are to judge a rule, not whether a mutant compiles.
PLAIN_PYTHON = """
import kvsim.cases.play
import kvsim.fleet.simulate

kvsim.cases.play.compiled_refuses = lambda config: "asked for"
kvsim.fleet.simulate.choose_backend = lambda setup: "asked for"
"""


class Mutant(NamedTuple):
    """A rule (section of the scheduler's rules), the file, and the line with and without it."""

    rule: str
    file: str
    line: str
    broken: str


VLLM, BATCH, ENGINE, QUEUE = (f"rules/{name}.py" for name in ("vllm", "batch", "engine", "queue"))
PAGED, POOL, PREFIX = "rules/paged.py", "rules/pool.py", "rules/prefix.py"
WINDOW = "rules/window.py"
HOST, HOST_LRU, HOST_ARC = (f"rules/host_{name}.py" for name in ("cache", "lru", "arc"))
OFFL, JOBS = "rules/offloading.py", "rules/offload_jobs.py"
OFFL_LOOKUP, OFFL_STORE, OFFL_WINDOW, OFFL_REQUEST = (
    f"rules/offload_{name}.py" for name in ("lookup", "store", "window", "request")
)
OFFL_SCHED = "sched/offloading.py"
ENCODER, EVENTS = "rules/encoder.py", "rules/events.py"
CADENCE, LORA, GRAMMAR = (f"rules/{name}.py" for name in ("cadence", "lora", "grammar"))
SPECULATION, ENDING = "rules/speculation.py", "rules/ending.py"
MAMBA, PARTIAL, CHECKPOINT = (
    f"rules/{name}.py" for name in ("mamba", "partial_keys", "checkpoint")
)
REPLAY = "rules/replay.py"
FAIR, LOCAL, RUNS = (f"rules/{name}.py" for name in ("fairness", "dlpm", "runs"))
CONNECTOR, HELD, KEPT = "rules/connector.py", "rules/held.py", "rules/kept.py"
LOADING, REPORT, ABORT = "rules/loading.py", "rules/report.py", "rules/abort.py"
ATTENTION, KEYS, EVICTION = "rules/attention.py", "rules/keys.py", "rules/eviction.py"
LINE = "rules/line.py"
PLANNER, PAGES, PACKED = (f"budget/{name}.py" for name in ("planner", "pages", "packed"))
LAYOUT, POOL_LAYOUT = "kv/paged.py", "kv/block_pool.py"  # the constants that the rules read

#: Left out, as no run can tell: the max_model_len limit of 2a.2 (outputs are cut beforehand), the
#: end of the loop after a FCFS self-preemption (the victim is the last), the computed count of a
#: waiting request (admission sets it), and the early stop of a lookup with two kinds of layers.
MUTANTS = [
    # 2. One step.
    Mutant("2 threshold ignored when alone", VLLM, "if num_unfinished > 1 else 0", "if num_unfinished > 0 else 0"),
    Mutant("2 adaptive threshold", VLLM, "threshold = max(threshold, limits.max_num_batched_tokens // num_unfinished)", "pass"),
    Mutant("2 adaptive threshold counts all", VLLM, "max_num_batched_tokens // num_unfinished", "max_num_batched_tokens // (num_unfinished + 1)"),
    Mutant("2a running first", VLLM, "    schedule_running(state, batch, threshold, held)\n", "    schedule_waiting(state, batch, threshold, held)\n    schedule_running(state, batch, threshold, held)\n"),
    Mutant("2a.1 certain to end", VLLM, "known = computed + 2 - placeholders", "known = computed + 1 - placeholders"),
    Mutant("2a.1 EOS is not certain", VLLM, "known >= request.end and is_end_known(state, request, known)", "known >= request.end"),
    Mutant("2a.1 max_tokens is certain where EOS may come", ENDING, "return num_tokens >= request.num_prompt_tokens", "return num_tokens > request.num_prompt_tokens"),
    Mutant("2a.1 a length is certain", ENDING, "    if not trace.has_eos:\n        return True\n", "    if not trace.has_eos:\n        return False\n"),
    Mutant("4 a surplus token fills no reserved slot", "rules/contiguous.py", "min(request.num_computed_tokens + num_tokens, request.max_slots)", "request.num_computed_tokens + num_tokens"),
    Mutant("4 a surplus token fills no mapped page", "rules/virtual.py", "    end = min(end, request.max_slots)  # a step that ends up surplus reaches beyond\n", ""),
    Mutant("2a.2 threshold on running", VLLM, "            num_tokens = threshold\n        num_tokens = min(num_tokens, budget, inputs, longest - computed)", "            pass\n        num_tokens = min(num_tokens, budget, inputs, longest - computed)"),
    Mutant("2a.3 FCFS victim is the last", BATCH, "return state.num_running - 1", "return 0"),
    Mutant("2a.3 priority victim by arrival", QUEUE, "    return a.arrival_time < b.arrival_time\n", "    return a.arrival_time > b.arrival_time\n"),
    Mutant("21 drafts join the next step", VLLM, "request.num_tokens + request.num_drafts + placeholders - computed", "request.num_tokens + placeholders - computed"),
    Mutant("21 drafts that fit", VLLM, "add_drafts(state, batch, max(min(request.num_drafts, num_tokens - num_known), 0))", "add_drafts(state, batch, request.num_drafts)"),
    Mutant("21 draft slots", VLLM, "        inputs -= num_tokens + slots\n", "        inputs -= num_tokens\n"),
    Mutant("21 the drafter reads on", SPECULATION, "if 0 < rest < lookahead:", "if False:"),
    Mutant("21 padding", SPECULATION, "return state.has_scheduled_running or hit > 0", "return hit > 0"),
    Mutant("21 no padding beside chunks", SPECULATION, "if state.carries_chunk or hit", "if hit"),
    Mutant("21 placeholders of drafts", SPECULATION, "request.num_placeholders += num_drafts", "request.num_placeholders += 0"),
    Mutant("21 drafts by batch size", SPECULATION, "if first <= batch.size <= last:", "if first < batch.size <= last:"),
    Mutant("21 a chunk has no drafts", SPECULATION, "if request.is_chunk > 0:", "if False:"),
    Mutant("21 rejected drafts", ENGINE, "            take_back(state, request, rejected)\n", "            pass\n"),
    Mutant("21 surplus tokens at the end", ENGINE, "            take_back(state, request, accepted + 1 - known)\n", "            pass\n"),
    Mutant("21 preemption drops drafts", BATCH, "    victim.num_drafts = 0\n", ""),
    Mutant("21 names cover what follows", KEYS, "            key = look_ahead(key, holding, request, lookahead)\n", "            pass\n"),
    Mutant("21 the last block of a hit", PREFIX, "        found -= min(kv.alignment, spec.block_size)\n", "        pass\n"),
    Mutant("21 a window gives its last block up", PREFIX, "found = aligned(kv, (place + run - drops) * size)", "found = aligned(kv, (place + run) * size)"),
    Mutant("21 a spec that drops looks further", PREFIX, "most = min(length + further, hashed) if drops else length", "most = length"),
    Mutant("21 groups that drop name one more", PAGED, "end = min(named, named // unit * unit + group.block_size)", "end = whole"),
    Mutant("21 multi-module drafters name later", PAGED, "    num_tokens -= kv.num_unnamed_tokens\n", ""),
    Mutant("21 boundaries of drafters", ATTENTION, "boundary = max(tokens // size * size - size, 0)", "boundary = tokens // size * size"),
    Mutant("5 a known token that fills a block names it", PAGED, " and request.num_tokens < end\n", "\n"),
    Mutant("20 the end of a prompt has a key", PAGED, "        name_tail(kv, request, holding, g, end)\n", "        pass\n"),
    Mutant("20 victim: the first of equals", BATCH, "            if is_more_urgent(state.requests[k], state.requests[other]):", "            if not is_more_urgent(state.requests[other], state.requests[k]):"),
    Mutant("20 ties of a trace's clock", BATCH, "        elif is_before(state.requests[k], state.requests[other]):", "        elif is_more_urgent(state.requests[k], state.requests[other]):"),
    Mutant("20 pipeline stages wait for a request's output", BATCH, "state.num_calls + state.limits.num_stages", "state.num_calls"),
    Mutant("20 tokens scheduled in a step", VLLM, "state.budget = limits.max_num_scheduled_tokens", "state.budget = limits.max_num_batched_tokens"),
    Mutant("20 prefill interval", CADENCE, "if state.num_executed + 1 - state.last_prefill >= interval:", "if state.num_executed - state.last_prefill >= interval:"),
    Mutant("20 prefill is held for decodes alone", CADENCE, "is_chunk == 0", "is_chunk >= 0"),
    Mutant("20 full: who waits for room", CADENCE, "num_queued(state) > state.num_deferred", "num_queued(state) > 0"),
    Mutant("20 full: not after preemptions", CADENCE, "if state.num_preempted == 0 and not held:", "if not held:"),
    Mutant("20 full: not while held", CADENCE, "if state.num_preempted == 0 and not held:", "if state.num_preempted == 0:"),
    Mutant("20 empty steps are not executed", CADENCE, "    if batch.size > 0:\n", "    if batch.size >= 0:\n"),
    Mutant("20 held chunks", VLLM, "(held and request.is_chunk > 0)", "False"),
    Mutant("20 held admissions", VLLM, "if held and num_tokens > 1:", "if held:"),
    Mutant("20 carried by a chunk", VLLM, "            state.carries_prefill = True\n            state.carries_chunk", "            state.carries_chunk"),
    Mutant("20 carried by an admission", VLLM, "        if request.num_tokens - computed > 1:\n", "        if request.num_tokens - computed > 0:\n"),
    Mutant("20 deferred no more", BATCH, "    state.num_deferred -= request.is_deferred\n    request.is_deferred = 0\n", ""),
    # 24. States of Mamba layers.
    Mutant("24 none: states for drafts", PAGED, "        slots += group.num_spec_blocks * group.block_size\n", "        pass\n"),
    Mutant("24 none: states for drafts in an admission", PAGED, "blocks = cdiv(num_tokens, group.block_size) + group.num_spec_blocks", "blocks = cdiv(num_tokens, group.block_size)"),
    Mutant("24 states before the last token are dropped", ATTENTION, "return max(0, num_tokens - 1) if kind >= MAMBA else 0", "return max(0, num_tokens) if kind >= MAMBA else 0"),
    Mutant("24 no lookahead slots of states", PAGED, "need += states_to_grow(kv, request, group, table, end)", "need += states_to_grow(kv, request, group, table, slots)"),
    Mutant("24 a state is needed, whatever the chunk", MAMBA, "        need = min(need, 1 + spare)\n", "        pass\n"),
    Mutant("24 states for drafts move", MAMBA, "range(old - num_moved, min(old, first))", "range(0)"),
    Mutant("24 a chunk leaves nulls", MAMBA, "    for _ in range(old, first):\n        add_state(kv, group, table, NULL_BLOCK)\n", ""),
    Mutant("24 a hit state takes a free block", MAMBA, "return need + (kv.pool.blocks[block].ref_cnt == 0)", "return need"),
    Mutant("24 a state named in this step", MAMBA, "    if is_new(kv, block):\n        return", "    if False:\n        return"),
    Mutant("24 named in this step: only in it", MAMBA, "    kv.states.step += 1\n", ""),
    Mutant("24 named in this step: by any request", MAMBA, "        k = kv.pool.blocks[k].copy\n", "        k = NONE\n"),
    Mutant("24 copies: the key is new", PARTIAL, "    kv.states.named_in[copy] = kv.states.step\n", ""),
    Mutant("24 states are named in the step that fills them", PAGED, "kv.states.named_in[table.blocks[place]] = kv.states.step", "pass"),
    Mutant("24 quiet until a state is copied", MAMBA, "    if group.kind == MAMBA_ALIGN and kv.states.pending[at] != NONE:\n        return 0\n", ""),
    Mutant("24 quiet until a state is dropped", MAMBA, "return min(last, (table.num_null + 1) * group.block_size + 1)", "return last"),
    Mutant("24 quiet until a block is named", PAGED, "return (holding.num_cached_tokens // kv.alignment + 1) * kv.alignment - 1", "return kv.max_model_len"),
    Mutant("24 quiet: drafters name at any time", PAGED, "        if kv.drops_last_block or kv.num_hash_lookahead_tokens > 0 or kv.states.keeps_shared:\n            return 0  #", "        if False:\n            return 0  #"),
    Mutant("24 the mask of states", ATTENTION, "        return not kv.keeps_boundaries\n", "        return True\n"),
    Mutant("24 the mask's interval", ATTENTION, "blocks = max(kv.segment // group.block_size, 1)", "blocks = kv.segment // group.block_size"),
    Mutant("24 a state never drops", LAYOUT, "group.drops_last_block = drops and not isinstance(spec, Mamba)", "group.drops_last_block = drops"),
    Mutant("24 look-up of states from the right", PREFIX, "for found in range(aligned(kv, limit), 0, -kv.alignment):", "for found in range(kv.alignment, limit + 1, kv.alignment):"),
    Mutant("24 chunks end at blocks", CHECKPOINT, "            end = whole\n", "            pass\n"),
    Mutant("24 a chunk shorter than a block", CHECKPOINT, "if whole > start or size <= longest:", "if whole > start:"),
    Mutant("24 a chunk shorter than a block: the threshold", CHECKPOINT, "            longest = min(longest, limits.long_prefill_token_threshold)\n", "            pass\n"),
    Mutant("24 a waiting head without a chunk blocks", VLLM, "            if num_tokens == 0:\n                state.refused = False\n                break\n            if num_drafts", "            if num_drafts"),
    Mutant("24 a cut chunk drops its padding", VLLM, "num_tokens, num_drafts = 1, 0", "pass"),
    Mutant("24 prompts alone are cut", CHECKPOINT, "    if start >= prefill_end:\n", "    if start > prefill_end:\n"),
    Mutant("24 recomputed outputs are cut, too", CHECKPOINT, "prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)", "prefill_end = request.num_prompt_tokens"),
    Mutant("24 stop at the next block", CHECKPOINT, "            stop = min(stop, cdiv(start, size) * size)\n", "            pass\n"),
    Mutant("24 stop at the last block", CHECKPOINT, "            stop = min(stop, last)\n", "            pass\n"),
    Mutant("24 stop at the prompt's last unit", CHECKPOINT, "            stop = min(stop, tail)\n", "            pass\n"),
    Mutant("24 that is between the last block and the end", CHECKPOINT, "last < tail < prompt and start < tail", "start < tail"),
    Mutant("24 stop where a prefix is shared", CHECKPOINT, "            stop = min(stop, whole)\n", "            pass\n"),
    Mutant("24 a shared prefix from the chunk's start", CHECKPOINT, "whole = start + (shared - start) // size * size", "whole = shared // size * size"),
    Mutant("24 the last state that can be hit", CHECKPOINT, "max(num_tokens - max(1, kv.num_hash_lookahead_tokens), 0)", "num_tokens"),
    Mutant("24 names that look ahead end before", CHECKPOINT, "max(1, kv.num_hash_lookahead_tokens)", "1"),
    Mutant("24 drafters that drop end a block before", CHECKPOINT, "        return max(num_tokens // unit * unit - unit, 0)\n", "        return num_tokens // unit * unit\n"),
    Mutant("24 hits inside a block", LAYOUT, "            kv.alignment = unit\n", "            pass\n"),
    Mutant("24 hits inside a block: when", LAYOUT, "isinstance(spec, Mamba) or sees_all(spec) or spec.block_size == unit", "True"),
    Mutant("24 full attention hits inside a block", PREFIX, "        found = find_inside(kv, holding, spec, found, limit)\n", "        pass\n"),
    Mutant("24 the longest part of a block", PREFIX, "range(min(limit, found + spec.block_size - 1) // unit, found // unit, -1)", "range(found // unit + 1, min(limit, found + spec.block_size - 1) // unit + 1)"),
    Mutant("24 a prompt's last state is named", MAMBA, "            name_state(kv, request, holding, g, num_tokens)\n", "            pass\n"),
    Mutant("24 a state inside a block is copied", MAMBA, "    if num_tokens % group.block_size > 0:\n        kv.states.pending", "    if False:\n        kv.states.pending"),
    Mutant("24 a copy takes a block", MAMBA, "        need = max(need, 0) + 1\n        spare = 1\n", "        pass\n"),
    Mutant("24 the copy of a hit takes a block", MAMBA, "        need = max(need, 0) + 1\n        spare += 1\n", "        pass\n"),
    Mutant("24 full attention's copy takes a block", PAGED, "            need += 1  # its last block is copied\n", "            pass\n"),
    Mutant("24 a hit goes on in the copy", PARTIAL, "    table.blocks[table.length - 1] = copy\n", "    pass\n"),
    Mutant("24 full attention copies, too", PAGED, "                copy_hit(kv, group, table)\n", "                pass\n"),
    Mutant("24 keys move to the copy", PARTIAL, "    move_key(kv.pool, source, copy)\n", ""),
    Mutant("24 sources and copies are held", ENGINE, "        release_copies(state.kv)\n", "        pass\n"),
    Mutant("24 copies go group by group", MAMBA, "            if states.copy_groups[k] == g:\n", "            if g == 0:\n"),
    Mutant("24 source before copy", PARTIAL, "    states.copies.blocks[2 * states.num_copies] = copy\n    states.copies.blocks[2 * states.num_copies + 1] = source\n", "    states.copies.blocks[2 * states.num_copies] = source\n    states.copies.blocks[2 * states.num_copies + 1] = copy\n"),
    Mutant("24 a shorter key beside a longer one", PARTIAL, "return pool.blocks[block].key != key and add_card(pool, block, key)", "return False"),
    Mutant("24 a longer key replaces a shorter one", PARTIAL, "    elif num_units(kv, holding, block, first, units - 1) > 0:\n", "    elif False:\n"),
    Mutant("24 a full key replaces a part's", PAGED, "            forget(kv.pool, block)\n", "            pass\n"),
    Mutant("24 cards go with their block", POOL, "            drop_cards(pool, k)\n", "            pass\n"),
    Mutant("24 a card's block", PREFIX, "            block = owner_of(kv.pool, block)\n", "            pass\n"),
    Mutant("24 checkpoints", LAYOUT, "            kv.states.checkpoint_alignment = states[0].checkpoint_alignment\n", "            pass\n"),
    Mutant("24 checkpoints: several blocks on", CHECKPOINT, "cdiv(end, size) - 2 <= (start - 1) // size", "cdiv(end, size) - 2 < (start - 1) // size"),
    Mutant("24 checkpoints: from a unit on", CHECKPOINT, "start % unit != 0", "False"),
    Mutant("24 checkpoints: their alignment", CHECKPOINT, "(place - start) % alignment == 0", "True"),
    Mutant("24 checkpoints: at a unit or later", CHECKPOINT, "return start + unit <= place < end", "return place < end"),
    Mutant("24 checkpoints: take a block", MAMBA, "    return need + takes_checkpoint(kv, group, start, end)\n", "    return need\n"),
    Mutant("24 checkpoints: a slot before", MAMBA, "slots - group.num_spec_blocks - 1 - leaves", "slots - group.num_spec_blocks - 1"),
    Mutant("24 checkpoints: named", MAMBA, "            give_key(kv, block, key)\n    elif", "            pass\n    elif"),
    Mutant("24 checkpoints: or not", MAMBA, "    elif kv.pool.blocks[block].hashed:\n        forget(kv.pool, block)\n", ""),
    Mutant("24 checkpoints: where a prompt ends", MAMBA, "    if end == last_state(kv, request.num_prompt_tokens, kv.alignment):\n        return True\n", ""),
    Mutant("24 checkpoints: where a prefix is shared", MAMBA, "end == request.shared_prefix_boundary or keeps_all", "keeps_all"),
    Mutant("24 checkpoints: those of the mask", MAMBA, "end % group.block_size == 0 and worth_caching(kv, group, request, place)", "False"),
    Mutant("24 shared prefixes: the stop", CHECKPOINT, "            whole = shared\n", "            pass\n"),
    Mutant("24 shared prefixes: the key", MAMBA, "states.keeps_shared and num_tokens == shared <= prompt", "False"),
    # 29. Other caches.
    Mutant("29 a ring takes one block", PAGED, "        return 1 - table.length\n", "        pass\n"),
    Mutant("29 a ring needs one block", PAGED, "        return 1\n    blocks = cdiv", "        return 2\n    blocks = cdiv"),
    Mutant("29 what is never cached sets no unit", LAYOUT, "units = [spec.block_size for spec in self.groups if is_cached(spec)]", "units = [spec.block_size for spec in self.groups]"),
    Mutant("29 what is never cached is not looked up", LAYOUT, "            if is_cached(spec):\n                members", "            if True:\n                members"),
    Mutant("29 MLA hits by itself", "kv/attention.py", "class MLA(FullAttention):", "class MLA(FullAttention):\n    def __eq__(self, other): return isinstance(other, FullAttention) and other.block_size == self.block_size\n    def __hash__(self): return hash((self.block_size,))\n"),
    Mutant("29 R-SWA keeps a window", WINDOW, "max(prompt, num_processed - group.reference_window)", "max(prompt, num_processed - group.reference_window + 1)"),
    Mutant("29 R-SWA keeps the prompt", WINDOW, "first > cdiv(prompt, group.block_size)", "first > prompt // group.block_size"),
    Mutant("29 retained tokens", LAYOUT, "found.window, found.block_size = num_kept(spec), spec.block_size", "found.window, found.block_size = spec.window, spec.block_size"),
    Mutant("29 retained tokens are kept", LAYOUT, "g, spec.kind, num_kept(spec)", "g, spec.kind, spec.window"),
    Mutant("29 retained tokens in the admission cap", LAYOUT, "                num_kept(spec),\n", "                spec.window,\n"),
    Mutant("29 retained tokens are not needed", ATTENTION, "group.window - group.extra_retained - 1", "group.window - 1"),
    Mutant("29 replay: short hits are given up", REPLAY, "return hit if hit > kv.replay_window else 0", "return hit if hit >= kv.replay_window else 0"),
    Mutant("29 replay: the window again", REPLAY, "return min(kv.replay_window, hit)", "return min(kv.replay_window - 1, hit)"),
    Mutant("29 replay: slots of the hit", VLLM, "max(num_tokens - num_replays, 0)", "num_tokens"),
    Mutant("29 replay: computed without it", VLLM, "admit(state, batch, k, num_tokens, computed)", "admit(state, batch, k, num_tokens, hit)"),
    Mutant("29 replay: nulls before its window", PAGED, "table.length = max(num_found(kv, group, hit), skipped)", "table.length = num_found(kv, group, hit)"),
    Mutant("25 adapters of running requests", VLLM, "        note_loras(state)\n", "        state.num_loras = 0\n"),
    Mutant("25 an adapter in use joins", LORA, "    return has_lora(state, request.lora)\n", "    return False\n"),
    Mutant("25 admissions add theirs", VLLM, "            add_lora(state, request)\n", "            pass\n"),
    Mutant("25 as many adapters as may be", LORA, "state.num_loras < state.limits.max_loras", "state.num_loras <= state.limits.max_loras"),
    Mutant("26 a grammar that is not compiled", GRAMMAR, "> state.ready_clock", "> state.ready_clock + 1"),
    Mutant("26 deferred although it is ready", GRAMMAR, "    if trace.ready_time[row] >= 0.0:\n        defer(state, request)\n", ""),
    # 27. KV events.
    Mutant("27 blocks that get keys", PAGED, "                note_key(log, key, place)\n", "                pass\n"),
    Mutant("27 one event per call and group", PAGED, "        note_stored(kv, request, holding, group, first, stop, first_key)\n", "        if log.num_keys > first_key:\n            note_stored(kv, request, holding, group, first, stop, first_key)\n"),
    Mutant("27 the parent of a call's first block", EVENTS, "units = first * group.keys_per_block", "units = first"),
    Mutant("27 a first block has no parent", EVENTS, "event.has_parent = int(units > 0)", "event.has_parent = 1"),
    Mutant("27 all tokens of a call", EVENTS, "    event.stop = stop * size\n", "    event.stop = (first + 1) * size\n"),
    Mutant("27 removed when handed out", POOL, "    if pool.has_events:\n        note_removed(pool, k)\n", ""),
    Mutant("27 all keys are removed", POOL, "        unlink(pool, k)\n        following", "        following"),
    Mutant("27 a prompt's end is told", PAGED, "    if is_new and kv.pool.has_events:\n        note_partial(kv, request, holding, g, units)\n", ""),
    Mutant("27 beside the key of the block", LAYOUT, "if not kv.matches_partially and not (self._tells_events and several):", "if not kv.matches_partially:"),
    Mutant("27 but once", PARTIAL, "        if pool.blocks[k].key == key:\n            return False\n", ""),
    Mutant("27 told by the next update", ENGINE, "        note_update(state.kv.pool.log, state.clock)\n", "        pass\n"),
    Mutant("27 runs: every step ends an update", RUNS, "            note_update(state.kv.pool.log, end)\n", "            pass\n"),
    Mutant("27 runs: no step ends behind the horizon", RUNS, "(under_way > state.horizon or state.clock >= state.horizon)", "state.clock >= state.horizon"),
    # 28. Encoder inputs.
    Mutant("28 items before the chunk", ENCODER, "if end <= computed:", "if False:"),
    Mutant("28 items behind the chunk", ENCODER, "if item.offset >= computed + num_tokens + ahead:", "if False:"),
    Mutant("28 items that the drafter reads", ENCODER, "if item.offset >= computed + num_tokens + ahead:", "if item.offset >= computed + num_tokens:"),
    Mutant("28 whole items", ENCODER, "state.limits.whole_items and computed <= item.offset and", "False and"),
    Mutant("28 whole items from their first token", ENCODER, "computed <= item.offset and", "computed < item.offset and"),
    Mutant("28 whole items before the drafter", ENCODER, "return max(item.offset - computed - ahead, 0)", "return max(item.offset - computed, 0)"),
    Mutant("28 one content once", ENCODER, "if is_chosen(state, item.content):", "if False:"),
    Mutant("28 duplicates refer, too", ENCODER, "        keep_item(state, encoder.duplicates[n])\n", "        pass\n"),
    Mutant("28 cached contents are kept at once", ENCODER, "            keep_item(state, place)\n", "            pass\n"),
    Mutant("28 budget of a step", ENCODER, "if item.num_tokens > encoder.budget - encoder.num_chosen_tokens:", "if False:"),
    Mutant("28 budget is used up", ENCODER, "encoder.budget = encoder.budget_before - encoder.num_chosen_tokens", "pass"),
    Mutant("28 a victim's budget", ENCODER, "            encoder.budget += state.trace.items[place].num_tokens\n", ""),
    Mutant("28 chosen items take room", ENCODER, "needed = encoder.num_chosen_tokens + item.num_tokens", "needed = item.num_tokens"),
    Mutant("28 what is needed stays", ENCODER, "if needed > encoder.num_reclaimable_tokens:", "if needed >= encoder.num_reclaimable_tokens:"),
    Mutant("28 the oldest goes", ENCODER, "content = encoder.unneeded.head", "content = encoder.unneeded.tail"),
    Mutant("28 evicted contents are gone", ENCODER, "        encoder.contents[content].is_cached = False\n", ""),
    Mutant("28 contents that come back", ENCODER, "        forget_eviction(state, item.content)\n", ""),
    Mutant("28 the chunk ends before the item", ENCODER, "            return min(num_tokens, max(item.offset - computed, 0))\n", "            return 0\n"),
    Mutant("28 entered once it has slots", VLLM, "        if encodes:\n            encode_items(state, k)\n", ""),
    Mutant("28 nothing to compute: set aside", VLLM, "if (limits.has_encoder or limits.num_drafts > 0) and num_tokens == 0:", "if limits.num_drafts > 0 and num_tokens == 0:"),
    Mutant("28 refused: all are let go", VLLM, "                release_all(state, request)\n", "                pass\n"),
    Mutant("28 computed items are let go", ENGINE, "            release_computed(state, request)\n", "            pass\n"),
    Mutant("28 not those under way", ENCODER, "request.num_computed_tokens - request.num_placeholders", "request.num_computed_tokens"),
    Mutant("28 ended: all are let go", ENGINE, "        release_all(state, request)\n    if request.status != RUNNING", "        pass\n    if request.status != RUNNING"),
    Mutant("28 preempted: all are let go", ENCODER, "    release_all(state, state.requests[k])\n", ""),
    Mutant("28 an item is met once", ENCODER, "    if state.encoder.is_met[place] == 0:\n", "    if True:\n"),
    Mutant("28 a content that is there is found", ENCODER, "    meet_item(state, place, True)\n", "    meet_item(state, place, False)\n"),
    Mutant("28 tokens that a step encodes", ENCODER, "    encoder.num_step_tokens = num_tokens\n", ""),
    Mutant("28 no graph covers an encoder", "rules/price.py", "    return max(computing, cost.encoder_launch)\n", "    return computing\n"),
    Mutant("28 let go, but findable", ENCODER, "            if encoded.num_references == 0:\n                append", "            if encoded.num_references == 0:\n                encoded.is_cached = False\n                append"),
    Mutant("28 names cover items", KEYS, "            key = add_items(key, holding, request.request_id, k * block_size, stop)\n", "            pass\n"),
    Mutant("28 where items begin", KEYS, "item.offset - start)\n    return key", "0)\n    return key"),
    Mutant("28 items after the block", KEYS, "stop = (k + 1) * block_size + lookahead", "stop = (k + 1) * block_size"),
    Mutant("20 ids are compared as text", QUEUE, "    return a.id_rank < b.id_rank\n", "    return a.request_id < b.request_id\n"),
    Mutant("2a.3 index follows a victim before it", VLLM, "            if place < index:\n                index -= 1\n", ""),
    Mutant("2a.3 budget of a dropped victim", VLLM, "            budget += given_back\n", ""),
    Mutant("2a.3 priority self-preemption goes on", VLLM, "if not state.limits.by_priority:\n                break", "if True:\n                break"),
    Mutant("2 preempted to the front", BATCH, "    note_preemption(state, k)\n    requeue(state, k)\n", "    note_preemption(state, k)\n    from kvsim.rules.queue import enqueue\n\n    enqueue(state, k)\n"),
    Mutant("2 stale output", BATCH, "victim.num_stale_tokens = victim.num_in_flight_tokens", "victim.num_stale_tokens = 0"),
    Mutant("2 placeholders go at preemption", BATCH, "    victim.num_placeholders = 0\n", ""),
    Mutant("2b nobody admitted in a preempting step", VLLM, "    if state.num_preempted == 0:\n        state.has", "    if True:\n        state.has"),
    Mutant("2b max_num_active_seqs", VLLM, "and state.num_running < limits.max_active\n", "and state.num_running <= limits.max_active\n"),
    Mutant("2b.1 stale heads are set aside", VLLM, "if request.num_stale_tokens > 0 and not state.connector.drops_stale:", "if False:"),
    Mutant("2b.1 set aside in order", VLLM, "for place in range(num_aside - 1, -1, -1):", "for place in range(num_aside):"),
    Mutant("2b.3 threshold on waiting", VLLM, "            num_tokens = threshold\n        if num_tokens > min(budget, inputs) and", "            pass\n        if num_tokens > min(budget, inputs) and"),
    Mutant("2b.3 unchunked head blocks", VLLM, "if num_tokens > min(budget, inputs) and not limits.enable_chunked_prefill:", "if False:"),
    Mutant("2b.5 hit counts as computed", BATCH, "request.num_computed_tokens = hit", "request.num_computed_tokens = hit // 2"),
    Mutant("2b.5 resumed or new", BATCH, "admission.resumed = request.status == PREEMPTED", "admission.resumed = False"),
    Mutant("2c placeholder per sampled token", BATCH, "request.num_placeholders += int(state.limits.asynchronous)", "request.num_placeholders = int(state.limits.asynchronous)"),
    Mutant("2 priority queue by arrival", QUEUE, "    return a.arrival_time < b.arrival_time\n", "    return False\n"),
    # 3. Update from output.
    Mutant("3 stale tokens count down", ENGINE, "            request.num_stale_tokens -= entry.num_tokens\n", "            request.num_stale_tokens = 0\n"),
    Mutant("3 stale tokens are kept", ENGINE, "        request.num_tokens += known  #", "        request.num_tokens += known * int(not stale)  #"),
    Mutant("3 async caches what is known", ENGINE, "computed = request.num_computed_tokens - request.num_in_flight_tokens", "computed = request.num_computed_tokens"),
    Mutant("3 async caching happens", ENGINE, "cache_computed(state.kv, request, computed)", "pass"),
    Mutant("3 unfinished chunks sample nothing", BATCH, "int(end < request.num_tokens + request.num_placeholders)", "int(end < request.num_prompt_tokens)"),
    Mutant("3 a preempted request that ends leaves the queue", ENGINE, "        leave_queue(state, k)\n        state.num_deferred", "        state.num_deferred"),
    # 4. Block pool.
    Mutant("4 block 0 is the null block", POOL_LAYOUT, "range(blocks - 1, 0, -1)", "range(blocks - 2, -1, -1)"),
    Mutant("4 get from the front", POOL, "        k = pool.unhashed[pool.num_unhashed]\n", "        k = pool.unhashed[0]\n        pool.unhashed[0] = pool.unhashed[pool.num_unhashed]\n"),
    Mutant("4 uncached freed to the front", POOL, "            pool.unhashed[pool.num_unhashed] = k\n", "            for other in range(pool.num_unhashed, 0, -1):\n                pool.unhashed[other] = pool.unhashed[other - 1]\n            pool.unhashed[0] = k\n"),
    Mutant("4 uncached keep list order", POOL, "    for place in range(first, stop):\n", "    for place in range(stop - 1, first - 1, -1):\n"),
    Mutant("4 cached freed to the back", EVICTION, "        line_up(pool.line, pool.blocks, k)\n", "        line_up(pool.line, pool.blocks, k)\n        for at in range(pool.line.stop - 1, pool.line.first, -1):\n            other = pool.line.entries[at - 1]\n            pool.line.entries[at] = other\n            if other >= 0:\n                pool.blocks[other].slot = at\n        pool.line.entries[pool.line.first] = k\n        pool.blocks[k].slot = pool.line.first\n"),
    Mutant("4 LRU, not MRU", EVICTION, "        return call_next(pool.line)\n", "        while pool.line.entries[pool.line.stop - 1] < 0:\n            pool.line.stop -= 1\n        pool.line.stop -= 1\n        return pool.line.entries[pool.line.stop]\n"),
    Mutant("4 a hit leaves the queue", LINE, "    line.entries[rows[k].slot] = NONE\n", "    pass\n"),
    Mutant("4 places follow when gaps close", LINE, "            rows[k].slot = stop\n", "            pass\n"),
    Mutant("4 lazy eviction", POOL, "gone = forget(pool, k)", "gone = False"),
    Mutant("4 freed last to first", PAGED, "        free_blocks(kv.pool, group, table, table.num_null, table.length)\n", "        for at in range((table.length - table.num_null) // 2):\n            a, b = table.num_null + at, table.length - 1 - at\n            table.blocks[a], table.blocks[b] = table.blocks[b], table.blocks[a]\n        free_blocks(kv.pool, group, table, table.num_null, table.length)\n"),
    Mutant("4 one free per group, in order", PAGED, "    for g in range(kv.num_groups):\n        group, table = kv.groups[g], holding.tables[g]\n        free_blocks(", "    for g in range(kv.num_groups - 1, -1, -1):\n        group, table = kv.groups[g], holding.tables[g]\n        free_blocks("),
    Mutant("4 touch takes a block off the queue", POOL, "    block.ref_cnt += 1\n", "    block.ref_cnt = 1\n"),
    Mutant("4 earliest copy is found", POOL, "    return k\n\n\ndef cache(", "    while k != NONE and pool.blocks[k].copy != NONE:\n        k = pool.blocks[k].copy\n    return k\n\n\ndef cache("),
    # 5. allocate_slots.
    Mutant("5 watermark", PAGED, "(kv.watermark_blocks if kv.num_held > 0 else 0)", "0"),
    Mutant("5 watermark ignored when nothing runs", PAGED, "(kv.watermark_blocks if kv.num_held > 0 else 0)", "kv.watermark_blocks"),
    Mutant("5.1 full length must fit", PAGED, "    if kv.reserve_full_isl:\n", "    if False:\n"),
    Mutant("5.1 admission cap on", PAGED, "need_to_admit(kv, holding, length, length, hit, hit, True)", "need_to_admit(kv, holding, length, length, hit, hit, False)"),
    Mutant("5.2 out-of-window blocks are dropped", PAGED, "        drop_out_of_window(kv, request, holding)\n", "        pass\n"),
    Mutant("5.2 in-flight tokens still see them", WINDOW, "kv.max_model_len) - request.num_in_flight_tokens)", "kv.max_model_len))"),
    Mutant("5.2 a block is dropped as soon as no token sees it", WINDOW, "else first + group.block_size\n", "else first + group.block_size + 1\n"),
    Mutant("4 a window that moves within a block leaves slots", WINDOW, "                rate += group.slot_bytes\n", "                rate += 0\n"),
    Mutant("4 shared blocks are dead where they are for all", WINDOW, "if kv.pool.num_shared == 0:", "if kv.pool.num_shared >= 0:"),
    Mutant("5.3 lookahead slots", PAGED, "min(end + kv.num_lookahead_tokens, kv.max_model_len)", "min(end, kv.max_model_len)"),
    Mutant("5.3 slots end at max_model_len", PAGED, "min(end + kv.num_lookahead_tokens, kv.max_model_len)", "end + kv.num_lookahead_tokens"),
    Mutant("5.4 skipped part of a hit is null", PAGED, "    for place in range(skipped):\n        table.blocks[place] = NULL_BLOCK\n", ""),
    Mutant("5 a hit on a free block takes it", PAGED, "need += block != NULL_BLOCK and kv.pool.blocks[block].ref_cnt == 0", "need += 0"),
    Mutant("5.6 cached when scheduled", PAGED, "        cache_blocks(kv, request, holding, min(end, request.num_tokens))\n    set_quiet(kv, request, holding)\n    return True\n\n\ndef set_quiet", "        pass\n    set_quiet(kv, request, holding)\n    return True\n\n\ndef set_quiet"),
    Mutant("5.6 no caching past known tokens", PAGED, "        cache_blocks(kv, request, holding, min(end, request.num_tokens))\n    set_quiet(kv, request, holding)\n    return True\n\n\ndef set_quiet", "        cache_blocks(kv, request, holding, end)\n    set_quiet(kv, request, holding)\n    return True\n\n\ndef set_quiet"),
    Mutant("5 sliding admission cap", ATTENTION, "return cdiv(longest, block_size) + 1", "return cdiv(longest, block_size)"),
    Mutant("5 chunked admission cap", ATTENTION, "return cdiv(min(window + max_in_flight_tokens, max_model_len), block_size)", "return cdiv(min(window, max_model_len), block_size)"),
    # 6. Hashing and lookup.
    Mutant("6 the last token is computed", PREFIX, "limit = request.num_tokens - max(ahead, 1)", "limit = request.num_tokens - ahead"),
    Mutant("6 parents count", KEYS, "key = holding.keys[k - 1] if k > 0 else mix(FIRST_KEY, request.cache_salt)", "key = mix(FIRST_KEY, request.cache_salt)"),
    Mutant("6 cache salt", KEYS, "mix(FIRST_KEY, request.cache_salt)", "mix(FIRST_KEY, 0)"),
    Mutant("6 position in the content counts", KEYS, "        key = mix_piece(key, piece, piece_start, piece_length)\n        if look", "        key = mix_piece(key, piece, 0, piece_length)\n        if look"),
    Mutant("6 full attention stops at a miss", PREFIX, "    while place < limit // spec.block_size and find_all(kv, holding, spec, place):\n        place += 1\n", "    for later in range(place, limit // spec.block_size):\n        place += int(find_all(kv, holding, spec, later))\n"),
    # 7. Windows.
    Mutant("7 window includes the token itself", ATTENTION, "return max(0, num_tokens - window + 1)", "return max(0, num_tokens - window)"),
    Mutant("7 chunks are forgotten whole", ATTENTION, "return num_tokens // window * window", "return max(0, num_tokens - window)"),
    Mutant("7 dropped from the highest index", WINDOW, "            free_blocks(kv.pool, group, table, table.num_null, stop)\n", "            for at in range((stop - table.num_null) // 2):\n                a, b = table.num_null + at, stop - 1 - at\n                table.blocks[a], table.blocks[b] = table.blocks[b], table.blocks[a]\n            free_blocks(kv.pool, group, table, table.num_null, stop)\n"),
    Mutant("7 a run of blocks ends a hit", PREFIX, "cdiv(spec.window - spec.extra_retained - 1, size)", "cdiv(spec.window - spec.extra_retained, size)"),
    Mutant("7 the run restarts after a miss", PREFIX, "            run = 0\n            continue\n", "            continue\n"),
    Mutant("7 hits end on aligned boundaries", PREFIX, "            continue  # a hit must end on an aligned boundary\n", "            pass\n"),
    Mutant("7 leading run", PREFIX, "    found = aligned(kv, run * size)\n", "    found = 0\n"),
    Mutant("7 chunked hit starts at its chunk", PREFIX, "place = num_skipped(spec.kind, spec.window, limit) // spec.block_size", "place = 0"),
    Mutant("7 retention 0 keeps the last window", ATTENTION, "    return end - run_length(group) <= place < end\n", "    return place < end\n"),
    Mutant("7 prompt boundary", ATTENTION, "return is_in_run(kv, group, prompt - 1, place) or is_in_run(kv, group, shared, place)", "return is_in_run(kv, group, shared, place)"),
    Mutant("7 shared prefix boundary", ATTENTION, "return is_in_run(kv, group, prompt - 1, place) or is_in_run(kv, group, shared, place)", "return is_in_run(kv, group, prompt - 1, place)"),
    Mutant("7 retention interval", ATTENTION, "(place - ahead) % blocks >= blocks - run", "(place - ahead) % blocks >= blocks - run - 1"),
    Mutant("7 dense retention", LAYOUT, "kv.segment = kv.alignment if retention is None else retention", "kv.segment = retention or 0"),
    # 8. Hybrid groups.
    Mutant("8 lcm of block sizes", LAYOUT, "lcm(*(spec", "max(*(spec"),
    Mutant("8 gcd of block sizes", PAGED, "at = (place + 1) * group.keys_per_block - 1", "at = place * group.keys_per_block"),
    Mutant("8 full attention first", LAYOUT, "key=lambda m: not sees_all(m[0])", "key=lambda m: 0"),
    Mutant("8 equal specs hit together", PREFIX, "        if block == NONE:\n            return False\n", "        if block == NONE:\n            block = 1\n"),
    Mutant("8 fixpoint", PREFIX, "if one_pass or not shrunk:", "if True:"),
    Mutant("8 full part is trimmed", PAGED, "    return cdiv(hit, group.block_size) if kv.matches_partially else hit // group.block_size\n", "    if kv.num_specs > 1 and group.kind == kv.specs[0].kind == 0:\n        hit = max(hit, kv.specs[0].length)\n    return cdiv(hit, group.block_size) if kv.matches_partially else hit // group.block_size\n"),
    Mutant("8 longest hit is the boundary", PREFIX, "    if longest > hit:\n        request.shared_prefix_boundary = longest\n", ""),
    Mutant("8 boundary overwritten by every lookup", PREFIX, "    request.shared_prefix_boundary = 0\n", ""),
    Mutant("8 caching rounds to the alignment", PAGED, "    num_tokens -= num_tokens % kv.alignment\n", ""),
    # 9 and 31. Groups of layers, their pages, and the packed rule.
    Mutant("9 close counts take the larger", PLANNER, "return many if many < 1.5 * few else few", "return few"),
    Mutant("9 layers are dealt in turn", PLANNER, "layers[index::num_groups] for index", "layers[index * size : index * size + size] for index"),
    Mutant("31 one sort is one group", PLANNER, "    if len({page.sort for page in pages}) == 1:\n        return _plan(pages, [everything])\n", ""),
    Mutant("31 one sort has one block size", PAGES, "return self.kind, self.block_size, self.window", "return self.kind, self.window"),
    Mutant("31 windows of one length are one sort", PAGES, "return self.kind, self.block_size, self.window", "return self.kind, self.block_size"),
    Mutant("31 packed only with several page sizes", PLANNER, "if packed and len({page.page_bytes for page in pages}) > 1:", "if packed:"),
    Mutant("31 windows beside MLA become full", PLANNER, 'full = [page._replace(kind="full", window=None) for page in pages]', "full = list(pages)"),
    Mutant("31 MLA beside larger states", PLANNER, "        if any(page.kind in STATES for page in pages):\n", "        if False:\n"),
    Mutant("31 MLA is never padded", PAGES, "elif page.is_latent:", "elif False:"),
    Mutant("31 smaller pages get longer blocks", PAGES, "elif largest % page.page_bytes == 0:", "elif False:"),
    Mutant("31 states are padded, not stretched", PAGES, "        elif page.kind in STATES:\n            made.append(page._replace(page_bytes=largest))\n", ""),
    Mutant("24 a page holds a state", PAGES, "return unit * cdiv(max(states), unit * bytes_per_token)", "return unit * max(max(states) // (unit * bytes_per_token), 1)"),
    Mutant("24 kernel alignment", PAGES, "unit = max(KERNEL_ALIGNMENT, block_size)", "unit = block_size"),
    Mutant("24 configured size is a multiple", PAGES, "unit = max(KERNEL_ALIGNMENT, block_size)", "unit = KERNEL_ALIGNMENT"),
    Mutant("24 MLA's alignment", PAGES, "        unit = max(unit, MLA_ALIGNMENT)\n", "        pass\n"),
    Mutant("24 states padded to attention", PAGES, "padded = max(held, largest)", "padded = held"),
    Mutant("24 uncached states have the longest block", PAGES, 'uncached = max_model_len if state.mode == "none" else block_size', "uncached = block_size"),
    Mutant("7 windows count one block more at the start", PLANNER, "        return cap or self.blocks_for(max_model_len, max_in_flight_tokens, max_model_len)", "        return self.blocks_for(max_model_len, max_in_flight_tokens, max_model_len)"),
    Mutant("7 the log's tokens by a group's blocks", "budget/capacity.py", "version_of(config.vllm_version) > LAST_BY_GROUP:", "True:"),
    Mutant("6 replicas share experts", "budget/capacity.py", "    return config.data_parallel_size if shared else 1", "    return config.data_parallel_size if config.enable_expert_parallel else 1"),
    Mutant("24 hash unit without caching", PLANNER, "            return self.scheduler_block_size\n        named", "            pass\n        named"),
    Mutant("29 a ring is not hashed", PLANNER, 'named = [group.block_size for group in self.groups if group.kind != "ring"]', "named = [group.block_size for group in self.groups]"),
    Mutant("29 a ring takes one block", PLANNER, '        if self.kind == "ring":\n            return 1\n', '        if self.kind == "ring":\n            return 2\n'),
    Mutant("31 blocks of a cached state", PAGES, "return 2 + self.num_speculative_blocks + self.num_checkpoint_blocks", "return 1 + self.num_speculative_blocks + self.num_checkpoint_blocks"),
    Mutant("31 checkpoint blocks", PAGES, "return 2 + self.num_speculative_blocks + self.num_checkpoint_blocks", "return 2 + self.num_speculative_blocks"),
    Mutant("31 speculative blocks, uncached", PAGES, "return 1 + self.num_speculative_blocks\n", "return 1\n"),
    Mutant("31 states of one page and settings", PAGES, "return self.kind, self.block_size, self.page_bytes, self.state", "return self.kind, self.block_size"),
    Mutant("31 repeats only of balanced buckets", PACKED, "balanced = [bucket for bucket in buckets if bucket.balanced]", "balanced = list(buckets)"),
    Mutant("31 repeats need several sizes", PACKED, "for b in balanced if len(b.members) > 1), default=0)", "for b in balanced), default=0)"),
    Mutant("31 fewest repeats of several sizes", PACKED, "return min(range(fewest, most + 1)", "return min(range(1, most + 1)"),
    Mutant("31 most repeats of balanced buckets", PACKED, "most = max(bucket.num_repeats for bucket in balanced)", "most = fewest"),
    Mutant("31 least padding", PACKED, "key=lambda size: (empty(size), -size))", "key=lambda size: -size)"),
    Mutant("31 largest of equal paddings", PACKED, "key=lambda size: (empty(size), -size))", "key=lambda size: (empty(size), size))"),
    Mutant("31 unbalanced buckets stay whole", PACKED, "if repeats and bucket.balanced:", "if repeats:"),
    Mutant("31 windows are cut without repeats", PACKED, '(bucket.first.kind == "sliding" and not repeats)', "False"),
    Mutant("31 windows are not cut with repeats", PACKED, '(bucket.first.kind == "sliding" and not repeats)', '(bucket.first.kind == "sliding")'),
    Mutant("31 anchor of a state bucket", PACKED, "b.bytes_per_block(b.num_layers if b in states else b.num_groups)", "b.bytes_per_block(b.num_groups)"),
    Mutant("31 anchor of the others", PACKED, "b.bytes_per_block(b.num_layers if b in states else b.num_groups)", "b.bytes_per_block(b.num_layers)"),
    Mutant("31 states keep their repeats", PACKED, "bucket.num_groups = max(bucket.num_groups, cdiv(bucket.num_layers, most))", "bucket.num_groups = cdiv(bucket.num_layers, most)"),
    Mutant("31 repeats are dealt in turn", PACKED, "m[index :: self.num_groups]", "m[index * len(m) // self.num_groups : (index + 1) * len(m) // self.num_groups]"),
    Mutant("31 a block is the largest group", PLANNER, "return KVPlan(groups, max(group.page_bytes for group in groups))", "return KVPlan(groups, groups[0].page_bytes)"),
    Mutant("23 fresh slots first", HOST, 'if host.num_slots_used < host.capacity:', 'if host.num_free_slots == 0:'),
    Mutant("23 what is being written is not ready", HOST, 'return host.chunks[k].pins != WRITING', 'return True'),
    Mutant("23 a pinned chunk is not ready to leave", HOST, 'host.num_ready -= chunk.pins == 0', 'pass'),
    Mutant("23 ghosts are cut", HOST, 'while host.lists[ghosts].length > host.capacity:', 'while False:'),
    Mutant("23 a threshold counts offers", HOST, 'return offers.rows[k].count >= host.threshold', 'return True'),
    Mutant("23 a touch never lowers a rank", HOST_LRU, 'chunk.rank = max(chunk.rank, number * host.orders + chunk.order)', 'chunk.rank = number * host.orders + chunk.order'),
    Mutant("23 offered chunks stay (LRU)", HOST_LRU, 'if chunk.pins == 0 and chunk.offer == host.last_offer:', 'if False:'),
    Mutant("23 offered chunks stay (ARC)", HOST_ARC, 'return host.chunks[k].pins == 0 and host.chunks[k].offer != host.last_offer', 'return host.chunks[k].pins == 0'),
    Mutant("23 a recent ghost raises the target", HOST_ARC, 'host.target + max(1.0, frequent / recent)', 'host.target + 1.0'),
    Mutant("23 a frequent ghost lowers the target", HOST_ARC, 'host.target = max(host.target - max(1.0, recent / frequent), 0.0)', 'host.target = host.target'),
    Mutant("23 a missed ghost is renewed", HOST_ARC, '    move_to(host, k, place)\n\n\ndef can_leave', '\n\ndef can_leave'),
    Mutant("23 recent chunks leave while they are many", HOST_ARC, 'if host.lists[RECENT].length >= int(host.target):', 'if True:'),
    Mutant("23 own transfers make a look-up unknown", OFFL_LOOKUP, 'return state.num_jobs > 0', 'return False'),
    Mutant("23 a look-up stores from the front again", OFFL_LOOKUP, 'state.cursors[g] = 0', 'pass'),
    Mutant("23 less than a chunk is no hit", OFFL_LOOKUP, '    if end - local < group.chunk_tokens:\n        return 0, 0\n    return end, unknown', '    return end, unknown'),
    Mutant("23 what is being written makes a look-up unknown", OFFL_LOOKUP, 'if unknown > 0 or (', 'if ('),
    Mutant("23 what is being loaded makes a look-up unknown", OFFL_LOOKUP, '(kv.enable_prefix_caching and is_loading(offloading, holding, local, end))', 'False'),
    Mutant("23 without prefix caching loads do not wait for loads", OFFL_LOOKUP, 'kv.enable_prefix_caching and is_loading', 'is_loading'),
    Mutant("23 one token is left with several groups", OFFL_LOOKUP, 'end, unknown = request.num_tokens - 1, 0', 'end, unknown = request.num_tokens, 0'),
    Mutant("23 a lowered hit forgets what was unknown", OFFL_LOOKUP, 'unknown, again, first = 0, True, 0', 'again, first = True, 0'),
    Mutant("23 a lowered hit looks at windows again", OFFL_LOOKUP, 'elif has_window and not again:', 'elif False:'),
    Mutant("23 a window needs its run", OFFL_LOOKUP, 'while place >= first and run < needed:', 'while place >= first and run < 1:'),
    Mutant("23 a run at the right end is longer", OFFL_LOOKUP, 'reach = group.window - 1 + -end % group.chunk_tokens', 'reach = group.window - 1'),
    Mutant("23 longest windows first", OFFL_SCHED, 'return offloading.groups[g].run if offloading.groups[g].window else float("inf")', 'return -g'),
    Mutant("23 a missed chunk is shown once", OFFL_STORE, 'if state.marks[mark] & MISSED > 0:', 'if False:'),
    Mutant("23 misses are shown from the last", OFFL_STORE, 'for at in range(count - 1, -1, -1):', 'for at in range(count):'),
    Mutant("23 evict only what is lacking", OFFL_STORE, 'num_to_evict = num_missing - (host.capacity - host.num_chunks)', 'num_to_evict = num_missing'),
    Mutant("23 no room stores nothing", OFFL_STORE, 'if num_to_evict > host.num_ready - num_kept:', 'if num_to_evict >= host.num_ready - num_kept:'),
    Mutant("23 a failed store is tried again", OFFL_STORE, '        if num_missing == NONE:\n            return NONE\n', '        if num_missing == NONE:\n            num_missing = 0\n'),
    Mutant("23 whole chunks of known blocks", OFFL_STORE, 'last = min(num_tokens // group.chunk_tokens, state.num_known[g] // size)', 'last = num_tokens // group.chunk_tokens'),
    Mutant("23 the last block of a chunk must be there", OFFL_WINDOW, 'if known_block(offloading, state, group, place * size + size - 1) == NULL_BLOCK:', 'if False:'),
    Mutant("23 a reachable block must be there", OFFL_WINDOW, '            if known_block(offloading, state, group, block) == NULL_BLOCK:\n                return False\n', ''),
    Mutant("23 only reachable chunks", OFFL_WINDOW, '    return found\n\n\ndef is_chunk', '    return True\n\n\ndef is_chunk'),
    Mutant("23 the prompt keeps its last window", OFFL_WINDOW, 'return is_near(offloading, group, prompt, block) or is_near(', 'return False or is_near('),
    Mutant("23 a shared prefix keeps its last window", OFFL_WINDOW, 'prompt, shared = state.num_prompt_tokens - 1, state.shared_prefix_boundary', 'prompt, shared = state.num_prompt_tokens - 1, 0'),
    Mutant("23 a segment keeps its last window", OFFL_WINDOW, 'block % per >= per - needed', 'False'),
    Mutant("23 a block that another got is not stored", OFFL_WINDOW, 'if group.window > 0 and offloading.got[block] > state.since[group.first_block + place]:', 'if False:'),
    Mutant("23 a request has one number", OFFL_REQUEST, 'if state.number == 0:', 'if True:'),
    Mutant("23 reused before stored", OFFL_REQUEST, 'if state.marks[at] & STORED == 0:', 'if True:'),
    Mutant("23 at its end a request ranks its chunks anew", OFFL_REQUEST, 'rank_chunk(host, k, new_number(host))', 'pass'),
    Mutant("23 the higher group first at the end", OFFL_REQUEST, '* group.chunk_tokens >= end:', '* group.chunk_tokens > end:'),
    Mutant("23 the lower group leaves first", OFFL_REQUEST, '(end * num_groups + num_groups - 1 - g)', '(end * num_groups + g)'),
    Mutant("23 later positions leave first", OFFL_REQUEST, 'return offloading.host.orders - 1 - (end', 'return (end'),
    Mutant("23 used again is frequent", OFFL_REQUEST, 'FREQUENT if marks & REUSED > 0 else host.chunks[k].place', 'host.chunks[k].place'),
    Mutant("23 small loads run with the step", OFFL, 'if local + external >= request.num_tokens or num_tokens > offloading.sync_load_budget:', 'if True:'),
    Mutant("23 a whole hit is loaded before the step", OFFL, 'if local + external >= request.num_tokens or num_tokens >', 'if num_tokens >'),
    Mutant("23 a load begins behind named blocks", OFFL, '(is_sync or not kv.pool.blocks[block].hashed)', 'True'),
    Mutant("23 stores begin behind a load", OFFL, 'side.cursors[g] = cdiv(end, offloading.groups[g].chunk_tokens)', 'side.cursors[g] = 0'),
    Mutant("23 preemption flushes", OFFL, 'flush_all_of(offloading, s, step, float(step))', 'pass'),
    Mutant("23 blocks of a load are got", OFFL, '            note_got(offloading, holding.tables[g].blocks[place], step)\n        side', '            pass\n        side'),
    Mutant("23 prompt only", OFFL, "end = min(end, request.num_prompt_tokens)", "pass"),
    Mutant("23 the last token has no KV", OFFL, 'computed = max(request.num_prompt_tokens, request.num_tokens - 1)', 'computed = max(request.num_prompt_tokens, request.num_tokens)'),
    Mutant("23 an aborted request stores what is computed", OFFL, 'request.num_computed_tokens if is_aborted else computed', 'computed'),
    Mutant("23 stores of a finished request are watched", OFFL, '    watch_all_of(offloading, s, step, float(step))\n', ''),
    Mutant("23 blocks of windows are watched at once", JOBS, 'if offloading.blocks[b].is_window > 0:', 'if False:'),
    Mutant("23 blocks of full groups only at the end", JOBS, 'if offloading.blocks[b].is_window > 0:', 'if True:'),
    Mutant("23 blocks got in the same step count", JOBS, 'if offloading.got[entry.block] == step:', 'if False:'),
    Mutant("23 no later than without a flush", JOBS, 'hasten(offloading, j, min(due, job.latest))', 'hasten(offloading, j, due)'),
    Mutant("23 flushed again it is reported later", JOBS, "if job.flushed == step:", "if job.flushed != NONE:"),
    # 22. KV connectors.
    Mutant("22 held requests come first", HELD, "    if state.connector.kind != NO_CONNECTOR and state.connector.held.length > 0:\n        return state.connector.held.head\n    return head_of(state)", "    if state.connector.kind != NO_CONNECTOR and state.waiting.length == 0:\n        return state.connector.held.head\n    return head_of(state)"),
    Mutant("22 who is held", HELD, "        request.num_computed_tokens > 0 or request.status == WAITING_FOR_REMOTE_KVS\n", "        request.status == WAITING_FOR_REMOTE_KVS\n"),
    Mutant("22 a load that failed whole is held", HELD, "        request.num_computed_tokens > 0 or request.status == WAITING_FOR_REMOTE_KVS\n", "        request.num_computed_tokens > 0\n"),
    Mutant("22 held by priority", HELD, "    while later != NONE and is_before(requests[later], requests[k]):", "    while later != NONE:"),
    Mutant("22 the threshold counts both queues", VLLM, "state.num_running + num_queued(state)\n", "state.num_running + state.waiting.length\n"),
    Mutant("22 unknown is set aside", CONNECTOR, "        return UNKNOWN\n    connector.is_async", "        return 0\n    connector.is_async"),
    Mutant("22 a partial tail is given up", CONNECTOR, "        if external > tail:", "        if external >= tail:"),
    Mutant("22 a partial tail keeps the connector out", CONNECTOR, "            external = 0\n    connector.is_async", "            external = external\n    connector.is_async"),
    Mutant("22 offered once", CONNECTOR, "    connector.offered[row] = 0\n", "    pass\n"),
    Mutant("22 external tokens count as computed", CONNECTOR, "    return hit + external\n", "    return hit\n"),
    Mutant("22 reserved for prompts under way", LOADING, "            total += missing_blocks(state, request)", "            pass"),
    Mutant("22 reserved for loads", LOADING, "kv, total = state.kv, state.connector.num_missing_blocks", "kv, total = state.kv, 0"),
    Mutant("22 prompt left", LOADING, "if request.num_computed_tokens < request.num_prompt_tokens:", "if request.num_computed_tokens < request.num_tokens:"),
    Mutant("22 reserved drafts", LOADING, "        length += 1 + state.limits.num_drafts + kv.num_lookahead_tokens", "        pass"),
    Mutant("22 drafts reserved once more", LOADING, "            total += cdiv(ahead, kv.groups[g].block_size)", "            pass"),
    Mutant("22 full-sequence check of a load", LOADING, "        if need_to_admit(kv, holding, length, length, hit, start, True) > free:", "        if need_to_admit(kv, holding, length, length, hit, start, True) > free - reserved:"),
    Mutant("22 room of a load", LOADING, "hit, start, False) > free - reserved:", "hit, start, False) > free:"),
    Mutant("22 a load has no lookahead", LOADING, " if num_tokens > 0 else start\n", " if num_tokens >= 0 else start\n"),
    Mutant("22 windows end behind external tokens", LOADING, "share_hit(kv, kv.groups[g], holding.tables[g], hit, start)", "share_hit(kv, kv.groups[g], holding.tables[g], hit, hit)"),
    Mutant("22 external blocks of all groups first", LOADING, "    missing = num_missing(group, table, start)\n", "    missing = 0\n"),
    Mutant("22 a load is named when it is there", LOADING, "    if num_tokens > 0:\n        if kv.enable_prefix_caching:", "    if True:\n        if kv.enable_prefix_caching:"),
    Mutant("22 loaded blocks are named", LOADING, "        cache_blocks(kv, request, kv.holdings[request.holding], num_tokens)\n", "        pass\n"),
    Mutant("22 admission check after a load", LOADING, "        if need_with_table(kv, request, length, length, True) > kv.pool.num_free - watermark(state):\n            return False", "        pass"),
    Mutant("22 room for the next tokens after a load", LOADING, "    if need_with_table(kv, request, slots, end, False) > kv.pool.num_free - watermark(state):", "    if need_with_table(kv, request, slots, end, False) > kv.pool.num_free:"),
    Mutant("22 the last token is computed", CONNECTOR, "        request.num_computed_tokens -= 1  #", "        request.num_computed_tokens -= 0  #"),
    Mutant("22 resumed after a load", CONNECTOR, "    request.status = PREEMPTED if request.num_preemptions > 0 else WAITING\n    if request.num_computed_tokens == 0:", "    request.status = WAITING\n    if request.num_computed_tokens == 0:"),
    Mutant("22 nothing loaded", CONNECTOR, "    if request.num_computed_tokens == 0:\n        rejoin", "    if request.num_computed_tokens == -1:\n        rejoin"),
    Mutant("22 windows drop at the end", CONNECTOR, "    if kv.has_windows:\n        drop_out_of_window(kv, request, kv.holdings[request.holding])\n    if loads:", "    if loads:"),
    Mutant("22 kept until read", CONNECTOR, "    if loads or (complete and connector.keeps[row]):", "    if loads:"),
    Mutant("22 an aborted request is not read", CONNECTOR, "(complete and connector.keeps[row])", "connector.keeps[row]"),
    Mutant("22 an aborted load keeps its blocks", CONNECTOR, "    if loads or (complete", "    if (complete"),
    Mutant("22 received before sent", REPORT, "    for at in range(connector.num_received):\n", "    for at in range(connector.num_sent):\n        row = connector.sent[at]\n        if connector.is_kept[row]:\n            free_kept(state, connector.place[row])\n    for at in range(connector.num_received):\n"),
    Mutant("22 a load given up is freed", REPORT, "        if connector.is_kept[row]:  # it", "        if connector.is_kept[row] > 1:  # it"),
    Mutant("22 cut at the first bad block", REPORT, "            if found == NONE:\n                found = place", "            found = place"),
    Mutant("22 a shared bad block is computed once", REPORT, "            connector.is_marked[table.blocks[place]] = 0\n", "            pass\n"),
    Mutant("22 running requests are cut too", REPORT, "        cut_running(state)\n", "        pass\n"),
    Mutant("22 void output of a cut request", REPORT, "            connector.skips[state.requests[k].request_id] = 1", "            connector.skips[state.requests[k].request_id] = 0"),
    Mutant("22 whole request failed", REPORT, "            fail(state, connector.place[row], 0)", "            pass"),
    Mutant("22 failure policy", REPORT, "    if connector.recomputes:", "    if True:"),
    Mutant("22 fence after its step", KEPT, "connector.fences[lifted] <= number:", "connector.fences[lifted] < number:"),
    Mutant("22 fence", KEPT, "    if not connector.has_fence or request.num_in_flight_tokens == 0:", "    if True:"),
    Mutant("22 fenced blocks joined", KEPT, "    for g in range(kv.num_groups - 1, -1, -1):", "    for g in range(kv.num_groups):"),
    Mutant("22 a victim in use is not preempted", VLLM, "            if state.connector.has_fence and is_in_use(state.requests[victim], batch):", "            if False:"),
    Mutant("22 producers drop stale output", ENGINE, "        return connector.drops_stale", "        return False"),
    Mutant("22 producers admit what is in flight", VLLM, "    if request.num_stale_tokens > 0 and not state.connector.drops_stale:", "    if request.num_stale_tokens > 0:"),
    Mutant("22 steps go on while blocks are kept", CONNECTOR, "    return connector.num_kept > 0 or connector.held", "    return connector.held"),
    Mutant("30 abort of a running request", ABORT, "        leave_running(state, k)\n", "        pass\n"),
    Mutant("30 abort frees", ABORT, "        free_early(state, request)\n", "        pass\n"),
    # Fair queues.
    Mutant("vtc the least served first", FAIR, "tenant.counter < shares.tenants[first].counter", "tenant.counter > shares.tenants[first].counter"),
    Mutant("vtc the oldest of a tenant first", FAIR, "    return state.shares.tenants[first_tenant(state)].queue.head\n", "    return state.shares.tenants[first_tenant(state)].queue.tail\n"),
    Mutant("vtc who comes back is lifted", FAIR, "        lift(state, t)\n", "        pass\n"),
    Mutant("vtc lifted, never lowered", FAIR, "max(tenants[t].counter, tenants[other].counter)", "tenants[other].counter"),
    Mutant("vtc lifted where nobody waits", FAIR, "        other = state.shares.last_active\n", "        pass\n"),
    Mutant("vtc lifted to who left last", FAIR, "        state.shares.last_active = t\n", "        state.shares.last_active = 0\n"),
    Mutant("vtc the preempted are not lifted", QUEUE, "        requeue_fair(state, k)\n", "        enqueue_fair(state, k)\n"),
    Mutant("vtc prompts are paid", BATCH, "            charge_admission(state, k, hit)\n", "            pass\n"),
    Mutant("vtc prompts are paid once", BATCH, "        if state.limits.fairness > 0:\n            charge_admission(state, k, hit)\n", "    if state.limits.fairness > 0:\n        charge_admission(state, k, hit)\n"),
    Mutant("vtc outputs are paid", ENGINE, "            charge_output(state, k, known)\n", "            pass\n"),
    Mutant("vtc weight of prompts", FAIR, "tenant.price * INPUT_WEIGHT * prompt", "tenant.price * OUTPUT_WEIGHT * prompt"),
    Mutant("vtc weight of outputs", FAIR, "tenant.price * OUTPUT_WEIGHT * num_tokens", "tenant.price * INPUT_WEIGHT * num_tokens"),
    Mutant("vtc cached prompts are paid", FAIR, "tenant.price * INPUT_WEIGHT * prompt", "tenant.price * INPUT_WEIGHT * (prompt - hit)"),
    Mutant("vtc runs are paid", RUNS, "        charge_run(state, steps)\n", "        pass\n"),
    Mutant("vtc runs end when a tenant is overtaken", RUNS, "longest = min(longest, steps_until_overtaken(state))", "pass"),
    Mutant("vtc overtaken at a tie by the smaller", FAIR, "(lead + gain - 1) // gain if t < first else lead // gain + 1", "lead // gain + 1"),
    Mutant("vtc another head is tried", FAIR, "return state.limits.fairness == VTC and fair_head(state) == state.shares.refused", "return state.limits.fairness == VTC"),
    Mutant("dlpm the longest match first", LOCAL, "state.shares.matched[k] > state.shares.matched[best]", "state.shares.matched[k] < state.shares.matched[best]"),
    Mutant("dlpm the oldest of equals", LOCAL, "state.shares.matched[k] > state.shares.matched[best]", "state.shares.matched[k] >= state.shares.matched[best]"),
    Mutant("dlpm only who has something left", LOCAL, "tenants[tenant_of(state, k)].deficit > 0", "tenants[tenant_of(state, k)].deficit >= 0"),
    Mutant("dlpm matched in every step", LOCAL, "            state.shares.matched[k] = look_up(state.kv, state.requests[k])\n", "            pass\n"),
    Mutant("dlpm cached tokens are free", FAIR, "tenant.deficit -= prompt - hit", "tenant.deficit -= prompt"),
    Mutant("dlpm outputs are paid", FAIR, "    tenant.deficit -= num_tokens\n", ""),
    Mutant("dlpm who has something is not refilled", LOCAL, "        if tenant.deficit <= 0:\n", "        if tenant.deficit <= state.shares.quantum:\n"),
    Mutant("dlpm a step that admitted refills nobody", LOCAL, "    if state.num_admitted > 0:\n", "    if False:\n"),
    Mutant("sglang storage least that is read", "rules/sglang/storage.py", "    if num_tokens < storage.least or", "    if num_tokens <= storage.least or"),
    Mutant("sglang storage reads one after another", "rules/sglang/storage.py", "read.begins = max(storage.free_time, read.asked)", "read.begins = read.asked"),
    Mutant("sglang storage waits for all of it", "rules/sglang/storage.py", "    if not read.is_done and now < goes_on_at(storage, read):\n", "    if not read.is_done and now <= goes_on_at(storage, read) - 1e9:\n"),
    Mutant("sglang storage a timeout by its tokens", "rules/sglang/storage.py", "read.asked + (storage.timeout + read.num_tokens * storage.timeout_per_token)", "read.asked + storage.timeout"),
    Mutant("sglang storage only whole pages", "rules/sglang/storage.py", "int(seconds / read.token_time) // page_size * page_size", "read.num_tokens"),
    Mutant("sglang storage what is there by now is freed", "rules/sglang/storage.py", "    if known > 0:\n", "    if known > number:\n"),
    Mutant("sglang storage below what the host has", "rules/sglang/storage.py", "    if not has_copy(tree, tree.node) or (", "    if ("),
    Mutant("sglang storage an idle replica hears who comes", "rules/sleep.py", "        time = min(time, state.trace.entry_time[state.trace.seen])\n", "        pass\n"),
    Mutant("sglang storage nothing beyond what was held", "rules/sglang/storage.py", " or start < storage.held[row]:\n", ":\n"),
    Mutant("sglang storage at the root under write_back", "rules/sglang/storage.py", " or (tree.write_policy == WRITE_BACK and best != 0):\n", ":\n"),
    Mutant("sglang storage holds the node meanwhile", "rules/sglang/storage.py", "    tree.nodes[k].num_host_locks += 1\n    settle_leaf(tree, k)\n", ""),
    Mutant("sglang storage who cannot wait is passed over", "rules/sglang/prefill.py", "            k = following\n            continue\n", "            break\n"),
    Mutant("sglang storage an idle replica waits for reads", "rules/sglang/loop.py", "    return now < time < math.inf\n", "    return False\n"),
    Mutant("sglang storage outputs are told", "rules/sglang/walk.py", "    node.row = request.request_id\n", "    node.row = 0\n"),
    Mutant("sglang map shows what the host alone has", "rules/sglang/paint.py", "    if node.on_host_only:\n        return\n", ""),
    Mutant("sglang pages single slots go behind", "rules/sglang/pages.py", "pages.num_left > 0 and pages.page_size == 1", "pages.num_left > 0 and pages.page_size < 1"),
    Mutant("sglang pages one block per batch", "rules/sglang/loop.py", "    open_groups(state.kv.radix)\n", ""),
    Mutant("sglang pages a decode goes on behind", "rules/sglang/pages.py", "        pages.first = page_after(pages, page)\n    return page\n", "        pages.first = page + 1\n    return page\n"),
    Mutant("sglang pages several chains are taken", "rules/sglang/pages.py", "    while left > 0 and left >= pages.front_count:\n", "    if left > 0 and left >= pages.front_count:\n"),
    Mutant("sglang pages the page before the last", "rules/sglang/held.py", "    mine.before_last = mine.last_page if mine.num_pages > 0 else 0\n", "    mine.before_last = page\n"),
    Mutant("sglang pieces go on where they left off", "rules/sglang/pieces.py", "held.index + passed != start + offset", "held.index != start + offset"),
    Mutant("sglang pieces whole pages are passed", "rules/sglang/pieces.py", "tree.segment, tree.offset + whole)", "tree.segment, tree.offset + same)"),
    Mutant("sglang pieces are cut where a node is", "rules/sglang/pieces.py", "        rest.index = held.index + num_tokens\n", "        rest.index = held.index\n"),
    Mutant("sglang pieces are copied with their index", "rules/sglang/pieces.py", "        new.index = held.index\n", "        new.index = 0\n"),
    Mutant("sglang leaves slru threshold", "rules/sglang/leaves.py", "int(node.num_hits >= tree.protected_threshold)", "int(node.num_hits > tree.protected_threshold)"),
    Mutant("sglang leaves tlru tail begins", "rules/sglang/leaves.py", "return -1 if node.start >= needed else 0", "return -1 if node.end >= needed else 0"),
    Mutant("sglang leaves ties by last access", "rules/sglang/leaves.py", "return tree.nodes[a].last_access < tree.nodes[b].last_access", "return tree.nodes[a].last_access > tree.nodes[b].last_access"),
    Mutant("sglang tree a split child is used last", "rules/sglang/nodes.py", "    parent.last_access = tick(tree)\n    child.last_access = tick(tree)\n", "    parent.last_access = tick(tree)\n"),
    Mutant("sglang tree a split keeps hits", "rules/sglang/nodes.py", "    parent.num_hits = child.num_hits\n", ""),
    Mutant("sglang tree a split keeps the reach", "rules/sglang/nodes.py", "    parent.reach = child.reach\n", ""),
    Mutant("sglang tree a split keeps when it was made", "rules/sglang/nodes.py", "    parent.created = child.created\n", ""),
    Mutant("sglang tree a split keeps the priority", "rules/sglang/nodes.py", "    parent.priority = child.priority\n", ""),
    Mutant("sglang tree hits beyond what was inserted", "rules/sglang/walk.py", "    if node.end > inserted and tree", "    if node.end >= inserted and tree"),
    Mutant("sglang checkpoint cuts at the prompt", "rules/sglang/held.py", "        cut_at_prompt(tree, last, prompt, request.priority + 1)\n", "        pass\n"),
    Mutant("sglang checkpoint raises the prompt", "rules/sglang/held.py", "prompt, request.priority + 1)", "prompt, request.priority)"),
    Mutant("sglang queue 128 matched", "rules/sglang/waiting.py", "MOST_MATCHED = 128", "MOST_MATCHED = 16"),
    Mutant("sglang queue 32 equal tokens", "rules/sglang/waiting.py", "EQUAL_TOKENS = 32", "EQUAL_TOKENS = 48"),
    Mutant("sglang queue refreshed from behind", "rules/sglang/waiting.py", "for place in range(count - 1, -1, -1):\n        request", "for place in range(count):\n        request"),
    Mutant("sglang queue the last token is computed", "rules/sglang/waiting.py", "mine.num_match = min(tree.num_found + num_host_found(tree), request.num_tokens - 1)", "mine.num_match = tree.num_found + num_host_found(tree)"),
    Mutant("sglang queue lpm", "rules/sglang/waiting.py", "mine.second = -float(mine.num_match)", "mine.second = float(mine.num_match)"),
    Mutant("sglang queue hrrn from entry on", "rules/sglang/waiting.py", "    mine.seen = scheduler.processed\n", "    mine.seen = 0\n"),
    Mutant("sglang queue shuffled from the end", "rules/sglang/waiting.py", "for place in range(count - 1, 0, -1):\n        other", "for place in range(1, count):\n        other"),
    Mutant("sglang queue words are made again", "rules/sglang/mersenne.py", "        make_words(scheduler.words)\n", ""),
    Mutant("sglang queue dfs-weight heavy first", "rules/sglang/weight.py", "> tree.nodes[child_b].weight", "< tree.nodes[child_b].weight"),
    Mutant("sglang queue dfs-weight own requests last", "rules/sglang/weight.py", "        return child_a != a\n", "        return child_b != b\n"),
    Mutant("sglang budget ignore_eos counts all", "rules/sglang/budget.py", "    return left * (1.0 if mine.ignores_eos else state.sglang.ratio)", "    return left * state.sglang.ratio"),
    Mutant("sglang budget a page beside each prompt", "rules/sglang/budget.py", "    scheduler.budget += num_tokens + size + max_new\n", "    scheduler.budget += num_tokens + max_new\n"),
    Mutant("sglang windows match wants a whole window", "rules/sglang/walk.py", "        if run >= tree.window:\n            tree.best = child\n", "        if run + 1 >= tree.window:\n            tree.best = child\n"),
    Mutant("a step that preempts is not the last", ENGINE, "is_idle = state.num_preempted == 0  #", "is_idle = True  #"),
    Mutant("what nobody reads is freed", "rules/report.py", "    free_kept(state, connector.place[row])\n    connector.is_idle", "    connector.is_idle"),
    Mutant("vtc prompts by weight", FAIR, "tenant.price * INPUT_WEIGHT * prompt", "INPUT_WEIGHT * prompt"),
    Mutant("vtc outputs by weight", FAIR, "tenant.price * OUTPUT_WEIGHT * num_tokens", "OUTPUT_WEIGHT * num_tokens"),
    Mutant("vtc runs by weight", FAIR, "(own - tenants[t].price * tenants[t].num_running)", "(tenants[first].num_running - tenants[t].num_running)"),
    Mutant("a failure is noticed late", "fleet/scaling.py", "self._lifecycle.choosable()]", "self._lifecycle.members(Life.READY)]"),
    Mutant("growth of a period ago", "fleet/autoscalers/hpa.py", "<= pool.now - GROWTH_PERIOD", "< pool.now - GROWTH_PERIOD"),
    Mutant("what a replica leaves behind", "fleet/event_feed.py", "        if self.listeners and self._replicas[place].outlet.has_events:\n            self._fetch(place)\n", ""),
    Mutant("own memory goes with its replica", "fleet/event_feed.py", "            leaver(place)\n", "            pass\n"),
    Mutant("who stays came when it was sent", "fleet/handoffs.py", "        table[\"arrival_time\"][row] = sent\n", ""),
    Mutant("a coarse clock", "fleet/network.py", " or self._now + rest / self._rate(transfer) == self._now", ""),
    Mutant("what nobody reads is held for its lease", "fleet/handoffs.py", "max(lease_end, now)", "now"),
    Mutant("who needs nothing of a dead replica goes on", "fleet/handoffs.py", "        if handoff.num_tokens == 0 or computes:\n", "        if computes:\n"),
    Mutant("who has blocks computes what it cannot read", "fleet/handoffs.py", "        computes = recomputes and handoff.has_asked and target.is_alive\n", "        computes = False\n"),
    Mutant("who is refused for ever is let go", "fleet/handoffs.py", "                self._lose_target(self._open.pop(row), time)\n", "                pass\n"),
    Mutant("who begins first says when", "fleet/handoffs.py", "        first = apart[~(own < there) & ~np.isnan(there)]\n", "        first = apart[~np.isnan(there)]\n"),
    Mutant("preempted requests ask again for nothing", "rules/connector.py", "    if request.num_preemptions == 0:  # vLLM counts", "    if True:  # vLLM counts"),
    Mutant("sglang host what has lost its copy is not queued", "rules/sglang/load.py", "            if tree.nodes[at].has_copy:", "            if True:"),
    Mutant("a trend wanders", "fleet/forecast.py", "@ STEP.T + self._wander", "@ STEP.T"),
    Mutant("a transfer ends with its replica", "fleet/handoffs.py", "                self._transfers.cancel(handoff.transfer)\n", "                pass\n"),
    Mutant("who drains waits for who reads", "fleet/lifecycle.py", "handoffs is None or not handoffs.waits_for(member)", "True"),
    Mutant("disaggregation entangled requests begin anew", "fleet/drive.py", "            if limit < math.inf or not self._is_idle:\n", "            if True:\n"),
    Mutant("disaggregation what is on its way is waited for", "fleet/handoffs.py", "        if comes or self._leases", "        if self._leases"),
    Mutant("metrics count all tokens of a run", "rules/runs.py", "    state.num_generated_tokens += steps * state.num_running\n", ""),
    Mutant("the longest gap is kept", "rules/recorder.py", "    state.totals.peak_token_gap = max(state.totals.peak_token_gap, seconds)\n", ""),
    Mutant("the fewest that wait say whether a queue clears", "results/load.py", "waiting[3 * quarter :].min()", "waiting[3 * quarter :].max()"),
    Mutant("a backlog grows beyond chance", "results/load.py", "return bool(after - before > chance)", "return bool(after - before > 0)"),
    Mutant("rejected requests do not wait", "results/load.py", "(reasons != FinishReason.REJECTED) & ", ""),
    Mutant("a limit binds if raising it serves more", "fleet/binding.py", "first + half > WORTH * (first + decodes)", "True"),
    Mutant("a longer chunk that costs as much more binds nothing", "fleet/binding.py", "2 * half > WORTH * whole", "True"),
    Mutant("KV on its way binds", "fleet/binding.py", "moving > max(", "-moving > max("),
    Mutant("metrics count prompts at first tokens", "rules/recorder.py", "        state.num_prompts_tokens += request.num_prompt_tokens\n", ""),
    Mutant("metrics of the last step that has ended", "fleet/scraper.py", "[place].metrics())", "[place].load())"),
    Mutant("who stays leaves its decode replica", "fleet/fleet.py", "            self._main_gateways.withdraw(row, now)\n", "            pass\n"),
    Mutant("who stays is not kept for anybody", "fleet/handoffs.py", "        source.replica.keep(row, keeps=False)\n", ""),
    Mutant("who stays frees what it held before", "fleet/handoffs.py", "        self._end_lease(self._leases.get((source.number, row)))\n        source.replica.keep(row, keeps=False)", "        source.replica.keep(row, keeps=False)"),
    Mutant("who comes from another replica has tokens", "rules/arrival.py", "        request.num_tokens += trace.carried[request.request_id]\n", "        request.num_tokens += 0\n"),
    Mutant("sglang windows a match refreshes the list", "rules/sglang/walk.py", "    touch_path(tree, tree.best)\n    if tree.window > 0:\n        refresh_recent(tree, tree.node)\n", "    touch_path(tree, tree.best)\n"),
    Mutant("sglang windows an insert refreshes the list", "rules/sglang/walk.py", "    if tree.window > 0:\n        refresh_recent(tree, tree.node)\n\n\ndef take_over", "\n\ndef take_over"),
    Mutant("sglang windows a window and a page are refreshed", "rules/sglang/recent.py", "tree.window + tree.pages.page_size:", "tree.window:"),
    Mutant("sglang windows the end node first", "rules/sglang/recent.py", "            newer = k\n", "            newer = NONE\n"),
    Mutant("sglang windows the parent of a split stands behind", "rules/sglang/window_slots.py", "        join_recent(tree, new, k)\n", "        join_recent(tree, new, NONE)\n"),
    Mutant("sglang windows a split keeps locks", "rules/sglang/window_slots.py", "    parent.num_window_locks = child.num_window_locks\n", "    parent.num_window_locks = 0\n"),
    Mutant("sglang windows a split takes the mark", "rules/sglang/window_slots.py", "    parent.edge = child.edge\n    child.edge = 0\n", ""),
    Mutant("sglang windows locks hold a window", "rules/sglang/window_slots.py", "        if passed >= tree.window:", "        if passed > tree.window:"),
    Mutant("sglang windows an unlock ends at the mark", "rules/sglang/window_slots.py", "k = 0 if edge != 0 and node.edge == edge else node.parent", "k = node.parent"),
    Mutant("sglang windows who is not held is taken over", "rules/sglang/repair.py", "    if node.num_locks == 0:\n", "    if node.num_locks < 0:\n"),
    Mutant("sglang windows a repair before its own duplicates", "rules/sglang/repair.py", "    tree.page = revive(tree, k, page_behind(tree.pages, first, (live - start) // size))\n    free_parts(tree, first, start, live, live)\n", "    behind = page_behind(tree.pages, first, (live - start) // size)\n    free_parts(tree, first, start, live, live)\n    tree.page = revive(tree, k, behind)\n"),
    Mutant("sglang windows dead duplicates go first", "rules/sglang/pages.py", "    dead = min(max(dead, start), end)\n", "    dead = end if tree.windows[page] == 0 else start\n"),
    Mutant("sglang windows one window as a leaf", "rules/sglang/repair.py", "    if node.span > longest:\n        gain_windows(tree, split_node(tree, k, node.span - longest))\n", ""),
    Mutant("sglang windows a window of whole pages", "rules/sglang/repair.py", "ceil_page(tree.window, tree.pages.page_size)", "tree.window // tree.pages.page_size * tree.pages.page_size"),
    Mutant("sglang windows leaves go whole", "rules/sglang/evict.py", "        if node.place > 0:\n            evict_leaf(tree, at)\n        else:\n            bury(tree, at)\n", "        bury(tree, at)\n"),
    Mutant("sglang windows used longest ago first", "rules/sglang/evict.py", "        k = tree.recent_places[k].previous\n        if node.num_window_locks > 0:\n            continue\n", "        k = tree.recent_places[k].previous\n        if node.num_window_locks > 0 or k == NONE:\n            continue\n"),
    Mutant("sglang windows what is held stays", "rules/sglang/evict.py", "        if node.num_window_locks > 0:\n            continue\n", "        if node.num_locks > 0:\n            continue\n"),
    Mutant("sglang windows 128 tokens between slides", "rules/sglang/slide.py", "DECODE_GAP = 128", "DECODE_GAP = 127"),
    Mutant("sglang windows a slide keeps whole pages", "rules/sglang/slide.py", "ceil_page(max(tree.window, size), size) if tree.enabled", "tree.window if tree.enabled"),
    Mutant("sglang windows no slide at the first decode", "rules/sglang/slide.py", "if mine.has_decoded and last", "if last"),
    Mutant("sglang windows the chunk under way stays", "rules/sglang/slide.py", "            behind = scheduler.chunk_size\n", "            behind = 0\n"),
    Mutant("sglang windows a checkpoint slides", "rules/sglang/held.py", "    if goes_on and tree.window > 0:\n        slide_window(tree, mine, num_tokens - 1, 1)\n", ""),
    Mutant("sglang windows who ends does not slide", "rules/sglang/held.py", "    if goes_on and tree.window > 0:\n", "    if tree.window > 0:\n"),
    Mutant("sglang windows up to the branching point", "rules/sglang/held.py", "    num_tokens = min(known, mine.branch) if branches else known\n", "    num_tokens = known\n"),
    Mutant("sglang windows a slide behind the branching point", "rules/sglang/held.py", "            slide_window(tree, mine, known - 1, 1)\n", "            pass\n"),
    Mutant("sglang windows no cut at the prompt", "rules/sglang/held.py", "    if tree.window == 0 and 0 < prompt < num_tokens:\n", "    if 0 < prompt < num_tokens:\n"),
    Mutant("sglang windows decodes want both pools", "rules/sglang/retraction.py", "    return num_free_slots(tree) >= needed\n", "    return tree.pages.num_unused_slots >= needed\n"),
    Mutant("sglang windows every pass tries again", "rules/sglang/prefill.py", "scheduler.num_running == 0 or state.kv.radix.window > 0:", "scheduler.num_running == 0:"),
    Mutant("sglang windows a chunk leaves a page", "rules/sglang/prefill.py", "rem_window(state) - scheduler.page_size)", "rem_window(state))"),
    Mutant("sglang windows a chunk waits", "rules/sglang/prefill.py", "        if limit <= 0:\n            return  # it waits for window slots, with what it has\n", ""),
    Mutant("sglang windows less than what is left", "rules/sglang/prefill.py", "    if needed < left:\n        return num_tokens\n", "    if needed <= left:\n        return num_tokens\n"),
    Mutant("sglang windows what never fits is cut", "rules/sglang/prefill.py", "    return floor_page(left - window_need(state, 0, to_come), tree.pages.page_size)\n", "    return 0\n"),
    Mutant("sglang windows need beyond a window", "rules/sglang/budget.py", "    return max(chunk - window, 0) + min(num_tokens + max_new, window) + scheduler.page_size\n", "    return max(chunk - window, 0) + window + scheduler.page_size\n"),
    Mutant("sglang windows need counts a chunk", "rules/sglang/budget.py", "    chunk = min(num_tokens, scheduler.rem_chunk) if scheduler.chunk_size > 0 else num_tokens\n", "    chunk = num_tokens\n"),
    Mutant("sglang windows no token without windows", "rules/sglang/budget.py", "    if state.kv.radix.window > 0 and rem_window(state) <= 0:\n        return NO_TOKEN\n", ""),
    Mutant("sglang windows who is cut gets no token", "rules/sglang/loop.py", "        if at < batch.num_extends and mine.num_middle > 0:\n            mine.num_middle -= 1\n            continue\n", "        if entry.unfinished > 0:\n            continue\n"),
    Mutant("sglang host ten tokens are worth a load", "rules/sglang/load.py", "LEAST_LOADED = 10", "LEAST_LOADED = 11"),
    Mutant("sglang host copies stay after a load", "rules/sglang/load.py", "            join_copies(tree, at)\n", "            pass\n"),
    Mutant("sglang host leaves are spared at first", "rules/sglang/backup.py", "        freed = drop_queued(tree, num_tokens, True)\n", ""),
    Mutant("sglang host stale entries keep their place", "rules/sglang/host.py", "    node.on_host_only = True\n    tree.nodes[node.parent]", "    node.on_host_only = True\n    leave_copies(tree, k)\n    tree.nodes[node.parent]"),
    Mutant("sglang host a split joins the queue", "rules/sglang/host.py", "    if child.is_queued and not child.on_host_only:\n        join_copies(tree, new)\n", ""),
    Mutant("sglang host what is inserted joins the queue", "rules/sglang/walk.py", "    enter_device(tree, k, page, last)\n    join_copies(tree, k)\n", "    enter_device(tree, k, page, last)\n"),
    Mutant("sglang host ancestors are copied first", "rules/sglang/backup.py", "        while tree.nodes[top].parent != 0 and not tree.nodes[tree.nodes[top].parent].has_copy:\n            top = tree.nodes[top].parent\n", ""),
    Mutant("sglang host hits of a write policy", "rules/sglang/walk.py", "        if tree.write_policy != NO_HOST and node.num_hits >= tree.write_policy:\n            write_through(tree, k)\n", "        if tree.write_policy != NO_HOST and node.num_hits > tree.write_policy:\n            write_through(tree, k)\n"),
    Mutant("sglang host a new leaf is copied", "rules/sglang/walk.py", "    if tree.write_policy != NO_HOST and node.num_hits >= tree.write_policy:\n        write_through(tree, k)\n    return k\n", "    return k\n"),
    Mutant("sglang host write_back counts no hits", "rules/sglang/walk.py", "    if node.end > inserted and tree.write_policy != WRITE_BACK:\n", "    if node.end > inserted:\n"),
    Mutant("sglang host write_back copies what is evicted", "rules/sglang/evict.py", "    if tree.write_policy == WRITE_BACK and not node.has_copy and back_up(tree, k):\n", "    if False and back_up(tree, k):\n"),
    Mutant("sglang host what has a copy stays in the tree", "rules/sglang/evict.py", "    if node.has_copy:\n        leave_device(tree, k)\n        return num_tokens\n", "    if node.has_copy and tree.write_policy == WRITE_BACK:\n        leave_device(tree, k)\n        return num_tokens\n"),
    Mutant("sglang host the host is first in first out", "kv/radix.py", "    lay_out_pages(tree.host_pages, memory, 0, num_pages)\n", "    lay_out_pages(tree.host_pages, memory, 0, num_pages)\n    tree.host_pages.page_size = 2\n"),
    Mutant("sglang host a match uses the end of its path", "rules/sglang/walk.py", "    touch_path(tree, tree.best)\n", "    touch_path(tree, tree.node)\n"),
    Mutant("sglang host the chunk counts what is on the host", "rules/sglang/prefill.py", "    best, left = tree.best, needed - on_host\n", "    best, left = tree.best, needed\n"),
    Mutant("sglang host the fit test does not", "rules/sglang/prefill.py", "    if needed + to_come + size >= rem_total(state):\n        return NO_ROOM\n", "    if left + to_come + size >= rem_total(state):\n        return NO_ROOM\n"),
    Mutant("sglang host a refused load is computed", "rules/sglang/prefill.py", "            left = needed\n            num_tokens = plan_prompt(state, k, needed, left, size)\n", "            return OTHER\n"),
    Mutant("sglang host a copy under way holds its node", "rules/sglang/backup.py", "        lock_path(tree, top)\n        copy =", "        copy ="),
    Mutant("sglang host a dropped leaf's parent may be next", "rules/sglang/backup.py", "    drop_node(tree, k)\n    settle_leaf(tree, parent)\n    return num_tokens\n", "    drop_node(tree, k)\n    return num_tokens\n"),
]  # fmt: skip

#: Those that ``--compiled`` also runs through the compiled engine: each is a minute of compiling.
COMPILED = (
    "2 adaptive threshold counts all",
    "2a.3 FCFS victim is the last",
    "2a.3 index follows a victim before it",
    "2b.1 set aside in order",
    "2b.5 hit counts as computed",
    "3 stale tokens are kept",
    "4 get from the front",
    "4 LRU, not MRU",
    "5 watermark",
    "5.3 lookahead slots",
    "7 window includes the token itself",
    "8 equal specs hit together",
)


def cases_for(mutant: Mutant, data: Path) -> list[str]:
    """Return the recorded schedules that may notice a mutant: those of its engine."""
    if mutant.rule.startswith("sglang host"):
        found = [*data.glob("sglang_cases/hicache*.gz"), *data.glob("sglang_cases/c[0-9]*.gz")]
        return [str(p) for p in sorted(found, key=lambda p: p.stat().st_size)]
    if mutant.rule.startswith("sglang windows"):
        found = sorted(data.glob("sglang_cases/s[0-9]*.json.gz"), key=lambda p: p.stat().st_size)
        return [str(p) for p in found]
    if mutant.rule.startswith("sglang"):  # with full attention; the shortest of each number first
        found = [p for p in data.glob("sglang_cases/*.json.gz") if p.name[0].isdigit()]
        found += data.glob("sglang_cases/radix_*.json.gz")
        return [str(p) for p in sorted(found, key=lambda p: p.stat().st_size)]
    return sorted(str(p) for p in data.glob("vllm_cases*/**/*.json.gz"))


def is_caught(mutant: Mutant, *, compiled: bool = False) -> str | None:
    """Return what catches a mutant, None if nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("kvsim", "workloads", "experiments", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "kvsim" / mutant.file
        path.write_text(path.read_text().replace(mutant.line, mutant.broken))
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"HYPOTHESIS_PROFILE": "ci", "KVSIM_CACHE_DIR": str(copy / "cache")}

        def fails(*arguments: str, seconds: int) -> bool:
            command = [sys.executable, *arguments]
            try:
                done = subprocess.run(
                    command,
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    timeout=seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return True
            return done.returncode != 0

        cases = cases_for(mutant, copy / "tests" / "data")
        replay = ("-m", "kvsim", "replay-case", "--backend")
        if compiled:
            if fails(*replay, "compiled", *cases, seconds=1200):
                return "recorded schedules, compiled"
            return None
        if fails(*replay, "python", *cases, seconds=300):
            return "recorded schedules"
        conftest = copy / "tests" / "conftest.py"
        conftest.write_text(conftest.read_text() + PLAIN_PYTHON)
        files = [f"tests/test_{name}.py" for name in TESTS]
        if fails(
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not benchmark",
            *files,
            seconds=1200,
        ):
            return "tests"
        return None


def main() -> None:
    """Try every mutant, or those whose rule starts with an argument."""
    compiled = "--compiled" in sys.argv
    wanted = [argument for argument in sys.argv[1:] if argument != "--compiled"] or [""]
    chosen = [m for m in MUTANTS if any(m.rule.startswith(start) for start in wanted)]
    if compiled:
        chosen = [m for m in chosen if m.rule in COMPILED]
    alive = []
    for mutant in chosen:
        by = is_caught(mutant, compiled=compiled)
        print(f"{mutant.rule}: {f'caught by {by}' if by else 'ALIVE'}", flush=True)  # noqa: T201
        alive += [mutant] if by is None else []
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants caught")  # noqa: T201
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
