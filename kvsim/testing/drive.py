"""Direct calls of a KV-cache manager's methods, to check their effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from kvsim.engine.contents import Contents
from kvsim.kv.manager import NO_HIT
from kvsim.kv.usage import WHOLE, Cause
from kvsim.records.request import FINISHED, PREEMPTED, RUNNING

if TYPE_CHECKING:
    import numpy as np

    from kvsim.engine.setup import Setup
    from kvsim.kv.manager import Hit
    from kvsim.records.request import Request
    from kvsim.trace import Trace

#: Address ranges of the memory maps that are compared.
NUM_BINS = 32
#: Random calls when several requests share the memory.
NUM_MOVES = 60


class Drive:
    """Random calls as a scheduler makes them; the state is compared before and after each call.

    Parameters
    ----------
    setup : creates the manager
    trace : the requests; those that do not fit are left out
    rng : random numbers
    """

    def __init__(self, setup: Setup, trace: Trace, rng: np.random.Generator) -> None:
        self.rng, self.kv, self._setup = rng, setup.make_kv(), setup
        self._longest = setup.memory.limits.max_model_len
        self._contents = Contents.of(trace)
        #: A refused call may have freed blocks outside the window, as in vLLM.
        self._has_windows = any(layer.window for layer in setup.kv_config.layout.layers)
        rows = [i for i in range(len(trace)) if trace.num_prompt_tokens[i] < self._longest]
        self._rows = [i for i in rows if self._fits(i)]
        self.check()
        self._empty = self._held()
        if self._setup.kv.foresees:
            self.kv.foresee(map(self._request, rows))

    def _request(self, row: int) -> Request:
        return self._contents.request(row, 0.0, self._longest)

    def _fits(self, row: int) -> bool:
        request = self._request(row)
        seen = self._seen()
        fits = self.kv.fits(request)
        if self._seen() != seen:
            _fail(f"fits() changes the state: {_difference(seen, self._seen())}")
        shorter = self._request(row)
        shorter.max_tokens -= shorter.max_tokens > 1
        shorter.end = shorter.num_prompt_tokens + shorter.max_tokens
        if fits and not self.kv.fits(shorter):
            _fail(f"fits() is true for {request}, and false for fewer tokens")
        return bool(fits)

    # -- state -------------------------------------------------------------------------------

    def _seen(self) -> dict[str, Any]:
        """Return the quantities that a call without effect must not change, by name."""
        map_of = self.kv.memory_map(NUM_BINS).tobytes()
        cached = self.kv.usage.cached
        return self._held() | {"bytes of cached": cached, "memory_map": map_of}

    def _held(self) -> dict[str, Any]:
        """Return by name the quantities that must be the same whenever no request holds memory."""
        usage, names = self.kv.usage, [cause.label for cause in WHOLE]
        bytes_of = {f"bytes of {name}": usage[place] for place, name in enumerate(names)}
        return bytes_of | {"num_free": self.kv.num_free, "kv_usage": self.kv.kv_usage}

    def check(self) -> None:
        """Recount the memory, and check the other quantities."""
        kv = self.kv
        kv.check_integrity()
        kv.usage.check(kv.total_bytes)
        if not 0 <= kv.kv_usage <= 1:
            _fail(f"kv_usage is {kv.kv_usage}")
        causes = kv.memory_map(NUM_BINS)
        if causes.shape != (NUM_BINS,) or not set(causes.tolist()) <= set(Cause):
            _fail(f"memory_map is not an array of {NUM_BINS} causes")

    # -- calls -------------------------------------------------------------------------------

    def lookup(self, request: Request) -> Hit:
        """Return the hit of a request; check that a lookup changes nothing."""
        if not self._setup.kv_config.enable_prefix_caching:
            return NO_HIT
        before = self._seen()
        first, hit = self.kv.lookup(request), self.kv.lookup(request)
        if self._seen() != before:
            _fail(f"lookup() changes the state: {_difference(before, self._seen())}")
        if first != hit:
            _fail(f"lookup() changes the state: it answers {first}, then {hit}")
        if not 0 <= hit.num_tokens < request.num_tokens:
            _fail(f"a hit of {hit.num_tokens} tokens leaves none of {request} to compute")
        return hit

    def take(self, request: Request, num_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Allocate slots; check that a refusal changes nothing."""
        before = self._seen()
        if not self.kv.allocate_slots(request, num_tokens, hit):
            if self._seen() != before and not self._has_windows:
                what = _difference(before, self._seen())
                _fail(
                    f"invariant 6: allocate_slots refused {request} and changed the state: {what}"
                )
            self.check()
            return False
        request.status = RUNNING
        request.num_computed_tokens += num_tokens + hit.num_tokens
        self.check()
        if request.num_computed_tokens == request.num_tokens:
            request.num_tokens += 1
        return True

    def admit(self, request: Request) -> bool:
        """Admit a request that holds no memory."""
        hit = self.lookup(request)
        return self.take(request, self._share(request.num_tokens - hit.num_tokens), hit)

    def grow(self, request: Request) -> bool:
        """Schedule some of a running request's remaining tokens."""
        return self.take(request, self._share(request.num_tokens - request.num_computed_tokens))

    def _share(self, num_tokens: int) -> int:
        """Draw the number of prompt tokens that a step computes."""
        if self._setup.scheduler_type.whole_prompts:
            return num_tokens
        most = min(num_tokens, self._setup.scheduler_config.max_num_batched_tokens)
        return most if self.rng.random() < 0.5 else int(self.rng.integers(1, most + 1))

    def release(self, request: Request) -> None:
        """Remove a request: it has ended, or is preempted."""
        self.kv.free(request)
        ended = request.num_tokens >= request.end
        request.status = FINISHED if ended else PREEMPTED
        request.num_computed_tokens = 0
        self.check()

    def check_empty(self) -> None:
        """Check the state of a memory when no request holds any of it."""
        if self._held() != self._empty:
            _fail(f"no request is left, and {_difference(self._empty, self._held())}")

    # -- runs --------------------------------------------------------------------------------

    def one_by_one(self) -> None:
        """Serve each request alone: what fits into an empty memory is never refused."""
        for row in self._rows:
            request = self._request(row)
            served = self.admit(request)
            while served and request.num_tokens < request.end:
                served = self.grow(request)
            if not served:
                _fail(f"fits() is true for {request}, and allocate_slots refuses it, alone")
            self.release(request)
            self.check_empty()

    def all_together(self) -> None:
        """Serve the requests concurrently, in a random order; preempt some."""
        waiting = [self._request(row) for row in self._rows]
        running: list[Request] = []
        for _ in range(NUM_MOVES):
            active = self._setup.scheduler_config.max_active
            if waiting and len(running) < active and self.rng.random() < 0.4:
                if self.admit(waiting[0]):
                    running.append(waiting.pop(0))
            elif running:
                request = running[int(self.rng.integers(len(running)))]
                stuck = request.num_tokens >= request.end or not self.grow(request)
                if stuck or self.rng.random() < 0.05:
                    running.remove(request)
                    self.release(request)
                    if request.status == PREEMPTED:
                        waiting.append(request)
        for request in running:
            self.release(request)
        self.check_empty()


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Return the quantities that differ, each with its expected and its actual value."""
    told = []
    for name, value in expected.items():
        if found[name] != value:
            if isinstance(value, bytes):
                told.append(f"{name} differs")
                continue
            both = [
                f"{one:,}" if isinstance(one, int) else f"{one:.4g}" for one in (found[name], value)
            ]
            told.append(f"{name} is {both[0]}, must be {both[1]}")
    return "; ".join(told)


def _fail(what: str) -> NoReturn:
    raise AssertionError(what)
