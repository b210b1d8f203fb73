"""Break each of vLLM's rules on purpose and see a test catch it: ``python tests/mutation.py``.

Every mutant is a copy of the package with one rule changed. It is caught if a recorded schedule no
longer comes out identical, or else if a test fails. The script prints the score and exits 1 if a
mutant lives.
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
TESTS = ("rules", "block_pool", "kv_managers", "schedulers", "cases", "peer_bugs", "eviction")


class Mutant(NamedTuple):
    """A rule (section of the scheduler's rules), the file, and the line with and without it."""

    rule: str
    file: str
    line: str
    broken: str


VLLM, SCHEDULER, QUEUE = "sched/vllm.py", "sched/scheduler.py", "sched/queue.py"
PAGED, POOL, HASH = "kv/paged.py", "kv/block_pool.py", "kv/block_hash.py"
CACHE, ATTENTION, PLANNER = "kv/prefix_cache.py", "kv/attention.py", "memory/planner.py"

#: Left out, as no run can tell: the max_model_len limit of 2a.2 (outputs are cut beforehand), the
#: end of the loop after a FCFS self-preemption (the victim is the last), the computed count of a
#: waiting request (admission sets it), and the early stop of a lookup with two kinds of layers.
MUTANTS = [
    # 2. One step.
    Mutant("2 threshold ignored when alone", VLLM, "if num_unfinished > 1 else 0", "if num_unfinished > 0 else 0"),
    Mutant("2 adaptive threshold", VLLM, "threshold = max(threshold, budget // num_unfinished)", "pass"),
    Mutant("2 adaptive threshold counts all", VLLM, "budget // num_unfinished", "budget // (num_unfinished + 1)"),
    Mutant("2a running first", VLLM, "        budget = self._schedule_running(plan, budget, threshold)\n        if not plan.preempted:\n            self._schedule_waiting(plan, budget, threshold)\n", "        self._schedule_waiting(plan, budget // 2, threshold)\n        budget = self._schedule_running(plan, budget, threshold)\n"),
    Mutant("2a.1 certain to end", VLLM, "if placeholders and computed + 2 - placeholders >= end:", "if placeholders and computed + 1 - placeholders >= end:"),
    Mutant("2a.2 threshold on running", VLLM, "            if 0 < threshold < num_tokens:\n                num_tokens = threshold\n            num_tokens = min(num_tokens, budget, longest - computed)", "            num_tokens = min(num_tokens, budget, longest - computed)"),
    Mutant("2a.3 FCFS victim is the last", SCHEDULER, "position = len(self.running) - 1", "position = 0"),
    Mutant("2a.3 priority victim by arrival", SCHEDULER, "return request.priority, request.arrival_time", "return request.priority, -request.arrival_time"),
    Mutant("2a.3 index follows a victim before it", VLLM, "                if position < index:\n                    index -= 1\n", ""),
    Mutant("2a.3 budget of a dropped victim", VLLM, "budget += plan.drop(victim)", "plan.drop(victim)"),
    Mutant("2a.3 priority self-preemption goes on", VLLM, 'if self.config.policy == "fcfs":\n                        return budget', "if True:\n                        return budget"),
    Mutant("2 preempted to the front", SCHEDULER, "        self.waiting.push_front(victim)\n        self._refused", "        self.waiting.append(victim)\n        self._refused"),
    Mutant("2 stale output", SCHEDULER, "victim.num_stale_tokens = victim.num_in_flight_tokens", "victim.num_stale_tokens = 0"),
    Mutant("2 placeholders go at preemption", SCHEDULER, "        victim.num_placeholders = 0\n", ""),
    Mutant("2b nobody admitted in a preempting step", VLLM, "        if not plan.preempted:\n            self._schedule", "        if True:\n            self._schedule"),
    Mutant("2b max_num_active_seqs", VLLM, "len(self.running) < self._max_active", "len(self.running) <= self._max_active"),
    Mutant("2b.1 stale heads are set aside", VLLM, "            if request.num_stale_tokens:\n                set_aside", "            if False:\n                set_aside"),
    Mutant("2b.1 set aside in order", VLLM, "for request in reversed(set_aside):", "for request in set_aside:"),
    Mutant("2b.3 threshold on waiting", VLLM, "            if 0 < threshold < num_tokens:\n                num_tokens = threshold\n            if num_tokens > budget and", "            if num_tokens > budget and"),
    Mutant("2b.3 unchunked head blocks", VLLM, "if num_tokens > budget and not self.config.enable_chunked_prefill:", "if False:"),
    Mutant("2b.5 hit counts as computed", SCHEDULER, "request.num_computed_tokens = hit.num_tokens", "request.num_computed_tokens = hit.num_tokens // 2"),
    Mutant("2b.5 resumed or new", SCHEDULER, "resumed = request.status == Status.PREEMPTED", "resumed = False"),
    Mutant("2c placeholder per sampled token", SCHEDULER, "                request.num_placeholders += 1\n", "                request.num_placeholders = 1\n"),
    Mutant("2 priority queue by arrival", QUEUE, "key = (request.priority, request.arrival_time, request.request_id)", "key = (request.priority, request.request_id, 0)"),
    # 3. Update from output.
    Mutant("3 stale tokens count down", SCHEDULER, "                request.num_stale_tokens -= num_tokens\n", "                request.num_stale_tokens = 0\n"),
    Mutant("3 stale tokens are kept", SCHEDULER, "            request.num_tokens += 1  #", "            request.num_tokens += not stale  #"),
    Mutant("3 async caches what is known", SCHEDULER, "known = request.num_computed_tokens - request.num_in_flight_tokens", "known = request.num_computed_tokens"),
    Mutant("3 async caching happens", SCHEDULER, "self.kv.cache_computed(request, known)", "pass"),
    Mutant("3 unfinished chunks sample nothing", SCHEDULER, "if end < request.num_tokens + request.num_placeholders:", "if end < request.num_prompt_tokens:"),
    Mutant("3 a preempted request that ends leaves the queue", SCHEDULER, "            self.waiting.remove(request)\n", "            pass\n"),
    # 4. Block pool.
    Mutant("4 block 0 is the null block", POOL, "deque(range(1, num_gpu_blocks))", "deque(range(num_gpu_blocks - 1))"),
    Mutant("4 get from the front", POOL, "block = unhashed.popleft()", "block = unhashed.pop()"),
    Mutant("4 uncached freed to the front", POOL, "self._unhashed.extendleft(reversed(unhashed))", "self._unhashed.extend(unhashed)"),
    Mutant("4 uncached keep list order", POOL, "self._unhashed.extendleft(reversed(unhashed))", "self._unhashed.extendleft(unhashed)"),
    Mutant("4 cached freed to the back", "kv/eviction.py", "        self._blocks[block_id] = None\n", "        self._blocks[block_id] = None\n        self._blocks.move_to_end(block_id, last=False)\n"),
    Mutant("4 LRU, not MRU", "kv/eviction.py", "popitem(last=False)", "popitem(last=True)"),
    Mutant("4 lazy eviction", POOL, "                self._forget(block)\n", ""),
    Mutant("4 freed last to first", PAGED, "self.pool.free(reversed(table))", "self.pool.free(table)"),
    Mutant("4 one free per group, in order", PAGED, "        for table in state.tables:\n            self.pool.free", "        for table in reversed(state.tables):\n            self.pool.free"),
    Mutant("4 touch takes a block off the queue", POOL, "            self.ref_cnt[block] += 1\n", "            self.ref_cnt[block] = 1\n"),
    Mutant("4 earliest copy is found", POOL, "next(iter(blocks))", "next(reversed(blocks))"),
    # 5. allocate_slots.
    Mutant("5 watermark", PAGED, "(self.watermark_blocks if self._tables else 0)", "0"),
    Mutant("5 watermark ignored when nothing runs", PAGED, "(self.watermark_blocks if self._tables else 0)", "self.watermark_blocks"),
    Mutant("5.1 full length must fit", PAGED, "        if self.reserve_full_isl:\n", "        if False:\n"),
    Mutant("5.1 admission cap on", PAGED, "self._need_to_admit(length, hit, self.admission_caps)", "self._need_to_admit(length, hit, None)"),
    Mutant("5.2 out-of-window blocks are dropped", PAGED, "            self._drop_out_of_window(request, state)\n", "            pass\n"),
    Mutant("5.2 in-flight tokens still see them", PAGED, "max(0, computed - request.num_in_flight_tokens)", "max(0, computed)"),
    Mutant("5.3 lookahead slots", PAGED, "min(end + self.num_lookahead_tokens, self.max_model_len)", "min(end, self.max_model_len)"),
    Mutant("5.3 slots end at max_model_len", PAGED, "min(end + self.num_lookahead_tokens, self.max_model_len)", "end + self.num_lookahead_tokens"),
    Mutant("5.4 skipped part of a hit is null", PAGED, "state.tables[g] = [NULL_BLOCK] * skipped + found", "state.tables[g] = [NULL_BLOCK] * skipped + list(reversed(found))"),
    Mutant("5 a hit on a free block takes it", PAGED, "need += block != NULL_BLOCK and self.pool.ref_cnt[block] == 0", "need += 0"),
    Mutant("5.6 cached when scheduled", PAGED, "            self._cache_blocks(request, state, min(end, request.num_tokens))\n        self._set_quiet(state)\n        return True\n\n    def _set_quiet", "            pass\n        self._set_quiet(state)\n        return True\n\n    def _set_quiet"),
    Mutant("5.6 no caching past known tokens", PAGED, "            self._cache_blocks(request, state, min(end, request.num_tokens))\n        self._set_quiet(state)\n        return True\n\n    def _set_quiet", "            self._cache_blocks(request, state, end)\n        self._set_quiet(state)\n        return True\n\n    def _set_quiet"),
    Mutant("5 sliding admission cap", PLANNER, "return -(-longest // block_size) + 1", "return -(-longest // block_size)"),
    Mutant("5 chunked admission cap", PLANNER, "return -(-min(window + max_in_flight_tokens, max_model_len) // block_size)", "return -(-min(window, max_model_len) // block_size)"),
    # 6. Hashing and lookup.
    Mutant("6 the last token is computed", CACHE, "limit = request.num_tokens - 1", "limit = request.num_tokens"),
    Mutant("6 parents count", HASH, "key = hashes[-1] if hashes else mix(NONE_HASH, request.cache_salt)", "key = mix(NONE_HASH, request.cache_salt)"),
    Mutant("6 cache salt", HASH, "mix(NONE_HASH, request.cache_salt)", "mix(NONE_HASH, 0)"),
    Mutant("6 position in the content counts", HASH, "        hashes.append(mix(mix(mix(key, piece_id), piece_start), piece_len))", "        hashes.append(mix(mix(key, piece_id), piece_len))"),
    Mutant("6 full attention stops at a miss", ATTENTION, "        for key in keys[: limit // self.block_size]:\n            blocks = lookup(key)\n            if blocks is None:\n                break\n", "        for key in keys[: limit // self.block_size]:\n            blocks = lookup(key)\n            if blocks is None:\n                continue\n"),
    # 7. Windows.
    Mutant("7 window includes the token itself", ATTENTION, "return max(0, num_tokens - self.window + 1)", "return max(0, num_tokens - self.window)"),
    Mutant("7 chunks are forgotten whole", ATTENTION, "return num_tokens // self.chunk * self.chunk", "return max(0, num_tokens - self.chunk)"),
    Mutant("7 dropped from the highest index", PAGED, "            self.pool.free(dropped)\n", "            self.pool.free(dropped[::-1])\n"),
    Mutant("7 a run of blocks ends a hit", ATTENTION, "return cdiv(self.window - 1, self.block_size)", "return cdiv(self.window, self.block_size)"),
    Mutant("7 the run restarts after a miss", ATTENTION, "                run = 0\n                continue\n", "                continue\n"),
    Mutant("7 hits end on aligned boundaries", ATTENTION, "                continue  # a hit must end on an aligned boundary\n", "                pass\n"),
    Mutant("7 leading run", ATTENTION, "return _align([found[:run] for found in hit], size, alignment)", "return [[] for _ in hit]"),
    Mutant("7 chunked hit starts at its chunk", ATTENTION, "num_unseen = self.num_skipped(limit) // self.block_size", "num_unseen = 0"),
    Mutant("7 retention 0 keeps the last window", ATTENTION, "            if end - run <= block < end:\n                return True\n", "            if block < end:\n                return True\n"),
    Mutant("7 prompt boundary", ATTENTION, "(request.num_prompt_tokens - 1, request.shared_prefix_boundary)", "(request.shared_prefix_boundary,)"),
    Mutant("7 shared prefix boundary", ATTENTION, "(request.num_prompt_tokens - 1, request.shared_prefix_boundary)", "(request.num_prompt_tokens - 1,)"),
    Mutant("7 retention interval", ATTENTION, "block % per_segment >= per_segment - run", "block % per_segment >= per_segment - run - 1"),
    Mutant("7 dense retention", ATTENTION, "segment = alignment if retention is None else retention", "segment = retention or 0"),
    # 8. Hybrid groups.
    Mutant("8 lcm of block sizes", CACHE, "self.alignment = lcm(*sizes)", "self.alignment = max(sizes)"),
    Mutant("8 gcd of block sizes", CACHE, "return hashes[ratio - 1 :: ratio]", "return hashes[::ratio]"),
    Mutant("8 full attention first", CACHE, "key=lambda m: not isinstance(m[0], FullAttention)", "key=lambda m: 0"),
    Mutant("8 equal specs hit together", CACHE, "                if block is None:\n                    return None\n                blocks.append(block)", "                if block is None:\n                    block = 1\n                blocks.append(block)"),
    Mutant("8 fixpoint", CACHE, "if not shrunk or one_pass:", "if True:"),
    Mutant("8 full part is trimmed", CACHE, "table[: cdiv(hit, spec.block_size)] if full else table", "table"),
    Mutant("8 longest hit is the boundary", CACHE, "longest if longest > hit else 0", "0"),
    Mutant("8 boundary overwritten by every lookup", VLLM, "request.shared_prefix_boundary = hit.shared_prefix_boundary", "request.shared_prefix_boundary = max(request.shared_prefix_boundary, hit.shared_prefix_boundary)"),
    Mutant("8 caching rounds to the alignment", PAGED, "        num_tokens -= num_tokens % alignment\n", ""),
]  # fmt: skip


def is_caught(mutant: Mutant) -> str | None:
    """Return what catches a mutant, None if nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("kvsim", "workloads", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "kvsim" / mutant.file
        path.write_text(path.read_text().replace(mutant.line, mutant.broken))
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["HYPOTHESIS_PROFILE"] = "ci"

        def fails(*arguments: str) -> bool:
            command = [sys.executable, *arguments]
            try:
                done = subprocess.run(
                    command,
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    timeout=300,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return True
            return done.returncode != 0

        cases = sorted(str(p) for p in (copy / "tests" / "data" / "vllm_cases").glob("*.json"))
        if fails("-m", "kvsim", "replay-case", *cases):
            return "recorded schedules"
        files = [f"tests/test_{name}.py" for name in TESTS]
        if fails("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files):
            return "tests"
        return None


def main() -> None:
    """Try every mutant, or those whose rule starts with an argument."""
    wanted = sys.argv[1:] or [""]
    chosen = [m for m in MUTANTS if any(m.rule.startswith(start) for start in wanted)]
    alive = []
    for mutant in chosen:
        by = is_caught(mutant)
        print(f"{mutant.rule}: {f'caught by {by}' if by else 'ALIVE'}", flush=True)  # noqa: T201
        alive += [mutant] if by is None else []
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants caught")  # noqa: T201
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
