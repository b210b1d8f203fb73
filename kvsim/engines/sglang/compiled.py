"""The compiled entries of SGLang's variants."""

from __future__ import annotations

from numba import njit

from kvsim.compiled.entry import serve_of

_sglang, _pools = serve_of("sglang"), serve_of("sglang-pools")


@njit(cache=True, error_model="numpy")
def serve_sglang(address, command, max_steps):
    """Run a command of the host on a replica under SGLang's scheduler."""
    return _sglang(address, command, max_steps)


@njit(cache=True, error_model="numpy")
def serve_pools(address, command, max_steps):
    """Run a command of the host on a replica under SGLang's scheduler with several pools."""
    return _pools(address, command, max_steps)


#: The entry of every variant.
ENTRIES = {"sglang": serve_sglang, "sglang-pools": serve_pools}
