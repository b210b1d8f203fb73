"""The entry of compiled code: registers every rule, and compiles one function over one address."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from kvsim import records, rules
from kvsim.compiled.types import CONSTANTS, record_at, register_properties
from kvsim.records.engine import VLLM, Replica
from kvsim.records.kv import PAGED
from kvsim.records.record import Record
from kvsim.rules import engine, keys, python

#: What a replica of the plain kind always is: paged under vllm, one full-attention group, LRU.
CONSTANTS["plain"] = {
    "Limits.scheduler": VLLM,
    "Limits.by_priority": 0,
    "Limits.adaptive": 0,
    "KV.manager": PAGED,
    "KV.num_groups": 1,
    "KV.num_specs": 1,
    "KV.has_windows": 0,
    "KV.reserve_output": 0,
    "KVGroup.window": 0,
    "KVGroup.kind": 0,
    "KVGroup.num_retired": 0,
    "KVGroup.keys_per_block": 1,
    "LookupSpec.num_groups": 1,
    "LookupSpec.kind": 0,
    "BlockPool.policy": 0,
    "Cost.num_layers": 1,
    "Cost.has_samples": 0,
    "Layers.kind": 0,
    "Replica.record_steps": 0,
    "Replica.num_swapped": 0,
    "Replica.swapped_bytes": 0,
    "Moved.fetched": 0,
    "Moved.stored": 0,
    "Moved.paged_in": 0,
    "Moved.paged_out": 0,
    "Moved.num_faults": 0,
}

#: Small rules go into their callers; the big and rare ones stay out of the hot loops' registers.
SMALL = frozenset(
    name
    for line in (
        "append remove push_front cdiv num_skipped past_the_end num_missing num_slots set_quiet",
        "find touch take_block append_blocks insert_victim remove_victim evict note_cached note_hit",
        "forget cache allocate_slots allocate_paged plan batch_at gemm_time decode_time prefill_time",
        "price work_time weigh weigh_attention step_time kv_usage measure measure_paged pass_time",
        "note_gap record_step is_refused is_trying find_all piece_of extend_keys cache_blocks",
        "cache_computed worth_caching count_work count_attention num_pairs num_keys free_blocks",
        "recycle forget_finished host_time gemms_time head_time swap_time elementwise_time",
        "all_reduce_time with_transfers is_before enqueue requeue dequeue head_of num_waiting",
        "allocate_contiguous rolled measure_contiguous",
    )
    for name in line.split()
)


def all_records() -> list[type[Record]]:
    """Return every record there is."""
    found = []
    for module in iter_modules(records.__path__, records.__name__ + "."):
        for _, value in inspect.getmembers(import_module(module.name), inspect.isclass):
            if (
                issubclass(value, Record)
                and value.__module__ == module.name
                and value is not Record
            ):
                found.append(value)
    return found


def register_rules() -> None:
    """Make every rule callable from compiled code."""
    register_properties(all_records())
    for module in iter_modules(rules.__path__, rules.__name__ + "."):
        for name, rule in inspect.getmembers(import_module(module.name), inspect.isfunction):
            if rule.__module__ != module.name or rule is keys.mix:
                continue
            if module.name == python.__name__:
                _register_absent(rule)
            else:
                register_jitable(forceinline=name in SMALL, error_model="numpy")(rule)


def _register_absent(rule: Any) -> None:
    """Compile to nothing what only a part in Python answers; such parts are refused before."""
    returns = rule.__annotations__["return"]
    arguments = ", ".join(inspect.signature(rule).parameters)
    value = {"int": "0", "bool": "False", "float": "0.0", "None": "None"}[returns]
    absent = eval(f"lambda {arguments}: {value}")
    overload(rule)(eval(f"lambda {arguments}: absent", {"absent": absent}))


@overload(keys.mix)
def _mix(key, value):
    a, b = np.uint64(0x2545F4914F6CDD1D), np.uint64(0xBF58476D1CE4E5B9)
    c, start = np.uint64(0x94D049BB133111EB), np.uint64(keys.START)
    s30, s27, s31, s1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)

    def mix(key, value):
        # Unsigned: compiled signed integers must never overflow.
        z = np.uint64(key) * a + np.uint64(value) + start
        z = (z ^ (z >> s30)) * b
        z = (z ^ (z >> s27)) * c
        return np.int64((z ^ (z >> s31)) >> s1)

    return mix


register_rules()
_plain, _general = record_at(Replica, "plain"), record_at(Replica, "")
_serve = engine.serve
SIGNATURE = types.int64(types.int64, types.int64, types.int64)


@njit(cache=True, error_model="numpy")
def serve_plain(address: Any, command: Any, max_steps: Any) -> Any:
    """Do what the host asks of a replica of the plain kind."""
    return _serve(_plain(address), command, max_steps)


@njit(cache=True, error_model="numpy")
def serve_general(address: Any, command: Any, max_steps: Any) -> Any:
    """Do what the host asks of any replica."""
    return _serve(_general(address), command, max_steps)
