"""The compiled entries of SGLang's variants."""

from __future__ import annotations

from numba import njit

from kvsim.compiled.types import record_at
from kvsim.records.engine import Replica
from kvsim.rules import engine

_sglang, _pools = record_at(Replica, "sglang"), record_at(Replica, "sglang-pools")
_serve = engine.serve


@njit(cache=True, error_model="numpy")
def serve_sglang(address, command, max_steps):
    """Run a command of the host on a replica under SGLang's scheduler."""
    return _serve(_sglang(address), command, max_steps)


@njit(cache=True, error_model="numpy")
def serve_pools(address, command, max_steps):
    """Run a command of the host on a replica under SGLang's scheduler with several pools."""
    return _serve(_pools(address), command, max_steps)


#: The entry of every variant.
ENTRIES = {"sglang": serve_sglang, "sglang-pools": serve_pools}
