"""A check of an eviction policy, for authors of eviction policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kvsim.kv.eviction import EVICTION_POLICIES, Alone
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.testing.serving import Run, check_runs, checked, random_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.kv.eviction import EvictionPolicy

#: Number of prompts in one run.
NUM_PROMPTS = 40
#: Seconds between two actions of a run, for policies that read the clock.
SECONDS = 0.25


def check_eviction(
    policy: str | Callable[..., EvictionPolicy],
    *,
    num_runs: int = 20,
    seed: int = 0,
    **options: Any,
) -> None:
    """Check an eviction policy against a reference implementation of the pool, and in runs.

    Every run serves random prompts, which share prefixes, from a pool of a few blocks. The victim
    must be the first block of the iteration, and never a block in use. The policy must hold each
    reusable free block exactly once. Length and iteration must agree, and iterating must change
    nothing. The same calls must give the same order again. After the last eviction the policy must
    be empty. Every fifth run also simulates a trace. :mod:`kvsim.testing` has the parameters.

    Examples
    --------
    >>> from kvsim.testing import check_eviction
    >>> check_eviction("sieve", num_runs=2)
    """
    check_runs(EVICTION_POLICIES, policy, _few_blocks, _check, num_runs, seed, options)


def _few_blocks(rng: np.random.Generator, number: int) -> dict[str, Any]:
    return {
        "num_gpu_blocks_override": int(rng.integers(8, 30)),
        "max_num_seqs": 6,
        "enable_prefix_caching": True,
    }


def _check(run: Run) -> None:
    orders = [_Pool(_alone(run.name), run.seed).play() for _ in range(2)]
    if orders[0] != orders[1]:
        _fail("the same calls give another order of victims: it is not deterministic")
    if run.seed[1] % 5 == 0:
        allocator = f"paged+block-size=4+eviction={run.name.replace('+', ':')}"
        checked(random_trace(run.rng), run.options | {"allocator": allocator})


def _alone(name: str) -> EvictionPolicy:
    policy = EVICTION_POLICIES.make(name)
    return Alone(policy) if isinstance(policy, EvictionRules) else policy


def _fail(what: str) -> NoReturn:
    raise AssertionError(what)


class _Prompt:
    """A prompt in use: the contents of its full blocks, and the blocks it holds."""

    def __init__(self, keys: list[int], blocks: list[int], num_cached: int) -> None:
        self.keys, self.blocks, self.num_cached = keys, blocks, num_cached


class _Pool:
    """Reference implementation of a block pool that drives the policy under check."""

    def __init__(self, policy: EvictionPolicy, seed: list[int]) -> None:
        self.policy, self.rng, self.time = policy, np.random.default_rng(seed), 0.0
        policy.clock = lambda: self.time
        num_blocks = int(self.rng.integers(2, 13))
        self.unused = list(range(1, num_blocks + 1))
        self.free: set[int] = set()  # blocks with content that no request holds
        self.ref_cnt = dict.fromkeys(self.unused, 0)
        self.key_of: dict[int, int] = {}
        self.blocks_of: dict[int, list[int]] = {}
        self.running: list[_Prompt] = []
        self.orders: list[list[int]] = []
        self.coming = [self._draw_prompt() for _ in range(NUM_PROMPTS)]

    def _draw_prompt(self) -> list[int]:
        """Draw a prompt's block keys: a path in a random tree, so that prompts share prefixes."""
        keys, node = [], 0
        for _ in range(int(self.rng.integers(0, 5))):
            node = node * 3 + int(self.rng.choice([1, 1, 2, 3]))
            keys.append(node * 0x9E3779B97F4A7C15 % 2**63)
        return keys

    def play(self) -> list[list[int]]:
        """Serve all prompts; return the policy's order of blocks after every action."""
        if self.policy.foresees:
            self.policy.foresee(self.coming)
        while self.coming:
            self.time += SECONDS
            if self.running and self.rng.random() < 0.6:
                self._move(self.running[int(self.rng.integers(len(self.running)))])
            elif not self._admit(self.coming[0]) and self.running:
                self._end(self.running[0])
            else:
                self.coming.pop(0)
            self._check()
        for prompt in self.running[:]:
            self._end(prompt)
            self._check()
        while self.free:
            self._evict()
            self._check()
        return self.orders

    def _admit(self, keys: list[int]) -> bool:
        """Hit the longest prefix, then allocate blocks for the rest and for a last token."""
        num_hits = next((i for i, k in enumerate(keys) if k not in self.blocks_of), len(keys))
        hits = [self.blocks_of[key][0] for key in keys[:num_hits]]
        needed = len(keys) + 1 - num_hits
        if needed > len(self.unused) + len(self.free.difference(hits)):
            return False
        if self.policy.foresees:
            self.policy.arrived(keys)
        for block in hits:
            self.policy.hit(block)
            if self.ref_cnt[block] == 0:
                self.policy.remove(block)
                self.free.remove(block)
            self.ref_cnt[block] += 1
        taken = [self.unused.pop() if self.unused else self._evict() for _ in range(needed)]
        for block in taken:
            self.ref_cnt[block] = 1
        self.running.append(_Prompt(keys, hits + taken, num_hits))
        return True

    def _evict(self) -> int:
        expected = next(iter(self.policy), None)
        block = self.policy.evict()
        if block not in self.free:
            _fail(f"evict() returns block {block}, which is in use or does not exist")
        if block != expected:
            _fail(f"evict() returns block {block}, and the iteration begins with {expected}")
        self.free.remove(block)
        key = self.key_of.pop(block)
        self.blocks_of[key].remove(block)
        if not self.blocks_of[key]:
            del self.blocks_of[key]
        return block

    def _move(self, prompt: _Prompt) -> None:
        """Compute the content of the prompt's next block, or end the prompt."""
        at = prompt.num_cached
        if at == len(prompt.keys) or self.rng.random() < 0.1:
            self._end(prompt)
            return
        block, key = prompt.blocks[at], prompt.keys[at]
        prompt.num_cached += 1
        self.key_of[block] = key
        self.blocks_of.setdefault(key, []).append(block)
        self.policy.cached(block, key)

    def _end(self, prompt: _Prompt) -> None:
        """Free the blocks of a prompt, last to first."""
        self.running.remove(prompt)
        for block in reversed(prompt.blocks):
            self.ref_cnt[block] -= 1
            if self.ref_cnt[block] == 0:
                if block in self.key_of:
                    self.policy.insert(block)
                    self.free.add(block)
                else:
                    self.unused.append(block)

    def _check(self) -> None:
        order = [int(block) for block in self.policy]
        if sorted(order) != sorted(self.free):
            _fail(f"the policy holds {sorted(order)}; free and reusable are {sorted(self.free)}")
        if len(self.policy) != len(order):
            _fail(f"the length is {len(self.policy)}, and the iteration has {len(order)} blocks")
        if [int(block) for block in self.policy] != order:
            _fail("iterating changes the order")
        self.orders.append(order)
