"""Warm starts: load a saved prefix cache before a run, and save the cache at its end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.errors import FieldError
from kvsim.kv.paged import PagedManager
from kvsim.kv.saved_cache import SavedCache, cache_of, facts_of, fill, read_cache, write_cache
from kvsim.records.eviction import LRU
from kvsim.trace.cuts import content_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.config import Config
    from kvsim.engine.replica import Replica
    from kvsim.engine.setup import Setup
    from kvsim.results.result import Result
    from kvsim.trace import Trace

#: Columns whose contents are numbered within a trace.
OWN_NUMBERS = {"lora_id": "LoRA adapters", "item_start": "encoder items"}

#: Note of a run with the cache of another trace.
BY_NUMBER = "contents of both traces with equal numbers are taken as the same"


class Warmth(NamedTuple):
    """Files of the cache at the start and the end, and the number of requests that fill it.

    ``same_contents`` states that the trace numbers its contents as the saved cache does.
    """

    load: str | Path | None = None
    save: str | Path | None = None
    requests: int = 0
    same_contents: bool = False


COLD = Warmth()


def serve_warm(serve: Callable[..., Result], setup: Setup, trace: Trace, warm: Warmth) -> Result:
    """Serve a trace from a loaded cache or after a warm-up, and save the cache at the end.

    ``serve`` is :func:`kvsim.fleet.simulate.serve` for a setup.

    Raises
    ------
    FieldError
        As :class:`WarmStart` does, if the warm-up leaves no requests, or if another trace filled
        the loaded cache and ``warm`` does not state that they share their contents.
    OSError
        If the cache cannot be written.
    """
    loaded, is_other = _loaded(warm, trace)
    field = "save_cache" if warm.load is None else "load_cache"
    if setup.config.lanes is not None and setup.config.horizon < math.inf:
        said = "conflicts with lanes and a horizon, which play sessions again with new contents"
        raise FieldError("warmup_requests" if warm.requests else field, said)
    if (warm.load or warm.save) is not None and trace.has("cache_salt"):
        raise FieldError(field, "does not take salts, whose texts are numbered in each trace")
    if warm.requests:
        field = "warmup_requests"
        if not 0 < warm.requests < len(trace):
            said = f"must be below {len(trace):,}, the number of requests, got {warm.requests:,}"
            raise FieldError(field, said)
        first = WarmStart(setup, trace[: warm.requests], field, loaded)
        serve(first.requests(), on_start=first.begin)
        loaded, trace = first.saved(), trace[warm.requests :]
    start = WarmStart(setup, trace, field, loaded)
    result = serve(start.requests(), on_start=start.begin)
    result.provenance["trace_digest"] = trace.digest
    notes = [f"{field}: {warm.requests:,} requests are in no table"] if warm.requests else []
    if is_other:
        notes.append(f"load_cache: {BY_NUMBER}")
    result.provenance["notes"] = [*result.provenance["notes"], *notes, *start.notes]
    if warm.save is not None:
        write_cache(warm.save, start.saved())
    return result


def serve_primed(
    serve: Callable[..., Result], setup: Setup, first: Trace | None, trace: Trace
) -> Result:
    """Serve a trace after the requests of ``first``, which warm the cache and are in no table.

    Raises
    ------
    FieldError
        As :class:`WarmStart` does.
    """
    cache = None
    if first is not None:
        before = WarmStart(setup, first, "primers")
        serve(before.requests(), on_start=before.begin)
        cache = before.saved()
    start = WarmStart(setup, trace, "primers", cache)
    result = serve(start.requests(), on_start=start.begin)
    number = 0 if first is None else len(first)
    said = f"primers: {number:,} requests before the run are in no table"
    result.provenance["notes"] = [*result.provenance["notes"], said, *start.notes]
    return result


def _loaded(warm: Warmth, trace: Trace) -> tuple[SavedCache | None, bool]:
    """Return the cache to load, and True if another trace filled it."""
    if warm.load is None:
        if warm.same_contents:
            raise FieldError("same_contents", "needs load_cache")
        return None, False
    loaded = read_cache(warm.load)
    is_other = content_digest(trace) not in loaded.contents
    if is_other and not warm.same_contents:
        raise FieldError(
            "load_cache",
            f"{warm.load}: another trace filled this cache, and equal numbers may stand for other "
            "contents; if both traces number the same contents, give same_contents",
        )
    return loaded, is_other


class WarmStart:
    """Fills the cache of a run's only replica before its first step, and reads it at the end.

    Parameters
    ----------
    setup : the setup of the replica
    trace : the requests
    field : the argument to name in errors
    loaded : the content of the cache at the start, None for an empty one

    Raises
    ------
    FieldError
        For a fleet; for a KV-cache manager, policy or trace that does not support saving; or for
        a saved cache of another model, block size or rule of keys.
    """

    def __init__(
        self, setup: Setup, trace: Trace, field: str, loaded: SavedCache | None = None
    ) -> None:
        self._loaded, self._trace, self._field = loaded, trace, field
        self._model = (setup.memory.model.name, str(setup.config.kv_cache_dtype))
        self._replica: Replica | None = None
        self.notes: list[str] = []
        reason = _refused(setup, trace)
        if reason is not None:
            raise FieldError(field, reason)

    def requests(self) -> Trace:
        """Return the trace, with contents of outputs that the loaded cache does not have."""
        trace = self._trace
        if self._loaded is None or not (trace.output_content_id < 0).any():
            return trace
        moved = trace.output_content_id - 2 * self._loaded.num_requests
        moved.flags.writeable = False
        return replace(trace, output_content_id=moved)

    def begin(self, replica: Replica) -> None:
        """Fill the cache of the replica. Mutates."""
        self._replica, pool = replica, replica.state.kv.pool
        if pool.num_hash_aliases > 0 or pool.has_host:
            raise FieldError(self._field, "does not take blocks with several keys, or a host tier")
        if self._loaded is None:
            return
        for name, value in self._facts().items():
            if self._loaded.facts.get(name) != value:
                raise FieldError(
                    self._field,
                    f"the cache was saved with {name} {self._loaded.facts.get(name)}, "
                    f"the run has {value}",
                )
        number, whole = fill(replica.state.kv, self._loaded), len(self._loaded.key)
        if number < whole:
            said = f"{number:,} of {whole:,} blocks fit into the pool, the newest"
            self.notes.append(f"{self._field}: {said}")

    def saved(self) -> SavedCache:
        """Return the content of the cache at the end of the run."""
        assert self._replica is not None
        before, contents = 0, {content_digest(self._trace)}
        if self._loaded is not None:
            before, contents = self._loaded.num_requests, contents | set(self._loaded.contents)
        number = before + len(self._trace)
        return cache_of(self._replica.state.kv, self._facts(), number, sorted(contents))

    def _facts(self) -> dict[str, Any]:
        assert self._replica is not None
        return facts_of(self._replica.state.kv, *self._model)


def _refused(setup: Setup, trace: Trace) -> str | None:
    """Return why a cache cannot be saved or loaded, or None."""
    return _refused_setup(setup) or _refused_options(setup.config) or _refused_trace(trace)


def _refused_setup(setup: Setup) -> str | None:
    config = setup.config
    fleet = config.pool or config.autoscaler or config.failures
    if fleet or config.data_parallel_size > 1 or config.num_prefill_workers:
        return "needs one replica; a fleet's caches are not saved"
    if not isinstance(setup.kv, PagedManager) or not setup.kv_config.enable_prefix_caching:
        return "needs allocator paged with prefix caching"
    if setup.kv.eviction.rules_of != LRU:
        return "needs eviction lru: other policies know more of a block than its content"
    return None


def _refused_options(config: Config) -> str | None:
    if config.kv_offloading_size or config.kv_transfer_config or config.kv_store:
        return "conflicts with KV in other memory, whose content is not saved"
    if config.kv_events_config is not None or config.record_block_events:
        return "conflicts with KV events, which would not report the loaded blocks"
    return None


def _refused_trace(trace: Trace) -> str | None:
    if not trace.has_segments:
        return "the trace names no contents (segments), so no prompt can hit"
    for name, what in OWN_NUMBERS.items():
        if trace.has(name):
            return f"does not take {what}"
    return "does not take several samples" if (trace.num_samples > 1).any() else None
