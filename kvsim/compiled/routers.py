"""Compiled entries of the routers' rules, each compiled separately and called by its address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba import njit, types

from kvsim.compiled.entry import alone, compile_or_load
from kvsim.compiled.linking import linked_at
from kvsim.compiled.types import CHECKED, record_at
from kvsim.records.routing import (
    Balance,
    BoundedRing,
    CostWeights,
    CountedSince,
    FirstTokens,
    Placement,
    ScoreWeights,
    TokenBound,
    TokenRates,
)
from kvsim.rules.routing import by_load, by_match, conductor, dynamo, llm_d, pick

if TYPE_CHECKING:
    from collections.abc import Callable

_placement = record_at(Placement, "")
_balance, _bound = record_at(Balance, ""), record_at(TokenBound, "")
_counted, _rates = record_at(CountedSince, ""), record_at(TokenRates, "")
_ring, _weights = record_at(BoundedRing, ""), record_at(ScoreWeights, "")
_cost_weights = record_at(CostWeights, "")
_first_tokens = record_at(FirstTokens, "")

_least_loaded, _least_of_two = pick.least_loaded, pick.least_of_two
_any_longest_match = pick.any_longest_match
_least_kv, _vllm_dp = by_load.choose_least_kv, by_load.choose_vllm_dp
_throughput, _chwbl = by_load.choose_aibrix_throughput, by_load.choose_chwbl
_cache_aware, _ray = by_match.choose_cache_aware, by_match.choose_ray_prefix_aware
_aibrix, _load_aware = by_match.choose_aibrix_prefix_cache, by_match.choose_load_aware
_token_aware, _llm_d = by_match.choose_token_aware, llm_d.choose_llm_d
_kv_aware, _dynamo = by_match.choose_kv_aware, dynamo.choose_dynamo
_conductor = conductor.choose_conductor


@njit(cache=True, error_model="numpy")
def least_outstanding(router, placement, unused):
    return _least_loaded(_placement(placement))


@njit(cache=True, error_model="numpy")
def power_of_two(router, placement, unused):
    return _least_of_two(_placement(placement))


@njit(cache=True, error_model="numpy")
def any_longest_match(router, placement, unused):
    """Apply the rule of production-stack's policy prefixaware."""
    return _any_longest_match(_placement(placement))


@njit(cache=True, error_model="numpy")
def least_kv(router, placement, unused):
    return _least_kv(_placement(placement))


@njit(cache=True, error_model="numpy")
def vllm_dp(router, placement, unused):
    return _vllm_dp(_counted(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def aibrix_throughput(router, placement, unused):
    return _throughput(_rates(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def chwbl(router, placement, unused):
    return _chwbl(_ring(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def cache_aware(router, placement, unused):
    return _cache_aware(_balance(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def ray_prefix_aware(router, placement, unused):
    return _ray(_balance(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def aibrix_prefix_cache(router, placement, unused):
    return _aibrix(_balance(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def load_aware(router, placement, unused):
    """Apply the rule of production-stack's policy loadaware."""
    return _load_aware(_balance(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def token_aware(router, placement, unused):
    """Apply the rule of llm-d-token-aware."""
    return _token_aware(_bound(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def kv_aware(router, placement, unused):
    return _kv_aware(_placement(placement))


@njit(cache=True, error_model="numpy")
def weighted_scores(router, placement, unused):
    """Apply the rule of llm-d."""
    return _llm_d(_weights(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def smallest_cost(router, placement, unused):
    """Apply the rule of dynamo."""
    return _dynamo(_cost_weights(router), _placement(placement))


@njit(cache=True, error_model="numpy")
def earliest_token(router, placement, unused):
    """Apply the rule of conductor."""
    return _conductor(_first_tokens(router), _placement(placement))


#: By rule: its entry.
ENTRIES: dict[Callable[..., int], Any] = {
    _least_loaded: least_outstanding,
    _least_of_two: power_of_two,
    _any_longest_match: any_longest_match,
    _least_kv: least_kv,
    _vllm_dp: vllm_dp,
    _throughput: aibrix_throughput,
    _chwbl: chwbl,
    _cache_aware: cache_aware,
    _ray: ray_prefix_aware,
    _aibrix: aibrix_prefix_cache,
    _load_aware: load_aware,
    _token_aware: token_aware,
    _kv_aware: kv_aware,
    _llm_d: weighted_scores,
    _dynamo: smallest_cost,
    _conductor: earliest_token,
}


def address_of(rule: Callable[..., int]) -> int:
    """Return the address of a router rule's machine code; 0 if it has none."""
    entry: Any = ENTRIES.get(rule)
    if CHECKED or not hasattr(entry, "overloads"):
        return 0
    if not entry.signatures:
        # A user's rules may have compiled its callees without linking them.
        lock, name = Path(entry.stats.cache_path) / "routers.lock", entry.py_func.__name__
        with alone(lock), linked_at(name):
            compile_or_load(entry, (types.int64, types.int64, types.int64))
    (compiled,) = entry.overloads.values()
    name = compiled.fndesc.llvm_cfunc_wrapper_name
    return int(compiled.library.get_pointer_to_function(name))
