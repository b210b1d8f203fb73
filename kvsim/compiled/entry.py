"""The entry of compiled code: one function over a replica's address, which can call every rule."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from numba import njit, types
from numba.extending import overload, register_jitable

from kvsim import engines, records, rules
from kvsim.compiled.key_rules import KEY_RULES
from kvsim.compiled.linking import linked_at
from kvsim.compiled.own_calls import TEXTS, register_calls
from kvsim.compiled.passes import INNER
from kvsim.compiled.pruning import pruned
from kvsim.compiled.types import CHECKED, Ref, Rows, prefetch, record_at, register_properties
from kvsim.compiled.variants import CONSTANTS, has_rule, variant_of
from kvsim.engines.registry import all_engines
from kvsim.records.engine import Replica
from kvsim.records.record import Record
from kvsim.rules import engine, fetching, python
from kvsim.rules.blocks.keys import times_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Small rules, which are inlined in their callers. Large and rare rules are not, so that they use
#: no registers of the hot loops.
SMALL = frozenset(
    name
    for line in (
        "append remove push_front cdiv",
        "num_skipped past_the_end num_missing num_slots slots_up_to end_within",
        "has_lookahead set_next_bookkeeping",
        "need_to_grow last_unnamed_end has_groups count_keys sees_windows",
        "find touch prefetch_key prefetch_victim prefetch_bucket prefetch_entry allocate_block",
        "array_append array_remove array_popleft append_blocks",
        "insert_victim remove_victim evict record_cached",
        "record_hit forget cache allocate_slots allocate_paged plan batch_at gemm_time decode_time",
        "accepted_time computing_time",
        "prefill_time price work_time weigh weigh_attention step_time kv_usage measure",
        "measure_paged pass_time record_gap record_step is_refused is_trying find_all span_of",
        "span_at sits_out next_tokens limit_tokens schedule_next record_planned settle_in_flight",
        "num_accepted gets_nothing deliver confirm decodes_regularly must_end_run",
        "extend_keys cache_blocks gap_bin",
        "foresees_growth record_growth begin_growing",
        "cache_computed worth_caching count_work count_attention num_pairs num_keys free_blocks",
        "recycle remove_finished host_time gemms_time head_time swap_time elementwise_time",
        "all_reduce_time with_transfers is_before enqueue requeue dequeue head_of num_waiting",
        "link unlink find_part num_found most_blocks",
        "has_pool has_blocks num_free append_slot allocate_forked",
        "allocate_contiguous rolled measure_contiguous",
        "num_queued next_in_line remove_from_queue return_to_front drop_references queue_unhashed",
        "allocate_own_blocks return_own_blocks",
        "allocate_page page_after link_page append_page extend_slots count_internal tick",
        "num_common goes_before rank_of may_go loop_has_work num_available radix_usage",
        "measure_radix",
    )
    for name in line.split()
)


#: The small rules that the general variant inlines, too: those of ``kvsim.rules.runs``, which
#: computes many decode steps together.
OF_RUNS = frozenset(
    name
    for line in (
        "accepted_time computing_time",
        "step_time work_time weigh weigh_attention gemm_time decode_time prefill_time host_time",
        "gemms_time head_time swap_time elementwise_time all_reduce_time with_transfers pass_time",
        "record_gap gap_bin record_step is_refused num_waiting allocate_slots plan batch_at cdiv",
    )
    for name in line.split()
)

#: Rules that are registered elsewhere: with another implementation, or for tables of keys, too.
OWN = (fetching.prefetch_item, fetching.prefetch_whole, times_plus, *KEY_RULES, *TEXTS)


def all_records() -> list[type[Record]]:
    found = []
    for package in (records, *map(import_module, engines.packages("records"))):
        for module in iter_modules(package.__path__, package.__name__ + "."):
            for _, value in inspect.getmembers(import_module(module.name), inspect.isclass):
                own = issubclass(value, Record) and value.__module__ == module.name
                if own and value is not Record:
                    found.append(value)
    return found


def rule_modules() -> list[tuple[str, str]]:
    """Return (path, name) of every module of rules; names of an engine's begin with its name."""
    found = []
    for package in (rules, *map(import_module, engines.packages("rules"))):
        name = package.__name__.removeprefix("kvsim.").removeprefix("engines.")
        first = name.removesuffix("rules")
        for module in walk_packages(package.__path__, package.__name__ + "."):
            found += [(module.name, first + module.name.partition(".rules.")[2])]
    return found


def register_rules() -> None:
    """Make every rule callable from compiled code."""
    register_properties(all_records())
    for path, module in rule_modules():
        for name, rule in inspect.getmembers(import_module(path), inspect.isfunction):
            if rule.__module__ != path or rule in OWN:
                continue
            if path == python.__name__:
                _register_absent(rule)
            else:
                _register(rule, module, small=name in SMALL)


def _register(rule: Any, module: str, *, small: bool) -> None:
    """Compile a rule for all variants; variants with constants inline small rules.

    In a variant that never calls the rule, an empty function takes its place.
    """
    absent, names = _absent(rule), tuple(inspect.signature(rule).parameters)

    @overload(rule, jit_options={"forceinline": small, **INNER}, strict=False)
    def with_constants(*args):
        variant = _variant(args)
        if variant == "":
            return None
        if variant is None:
            return rule
        if not has_rule(variant, module):
            return absent
        return pruned(rule, dict(zip(names, args, strict=True)), CONSTANTS[variant])

    inline = rule.__name__ in OF_RUNS

    @overload(rule, jit_options={"forceinline": inline, **INNER}, strict=False)
    def for_any(*args):
        if _variant(args) != "":
            return None
        return rule if has_rule("", module) else absent


def _variant(args: Any) -> str | None:
    """Return the variant of the first record among the arguments; None if none is a record."""
    for arg in args:
        record = arg.item if isinstance(arg, Rows) else arg
        if isinstance(record, Ref):
            return record.variant
    return None


def _absent(rule: Any) -> Any:
    """Return a function with the same arguments that returns zero."""
    returns = rule.__annotations__["return"]
    arguments = ", ".join(inspect.signature(rule).parameters)
    value = {"int": "0", "bool": "False", "float": "0.0", "None": "None"}.get(returns, "(0, 0)")
    return eval(f"lambda {arguments}: {value}")


def _register_absent(rule: Any) -> None:
    """Register an empty function for a call of a part in Python, which compiled runs refuse."""
    absent = _absent(rule)
    overload(rule, jit_options=INNER, strict=False)(lambda *args: absent)


@overload(fetching.prefetch_item, jit_options={"forceinline": True, **INNER})
def _ask(rows, place):
    def prefetch_item(rows, place):
        prefetch(rows, place, 0)

    return prefetch_item


@overload(fetching.prefetch_whole, jit_options={"forceinline": True, **INNER})
def _ask_whole(rows, place):
    def prefetch_whole(rows, place):
        prefetch(rows, place, 0)
        prefetch(rows, place, 1)

    return prefetch_whole


register_calls(**INNER)
register_rules()


def serve_of(variant: str) -> Any:
    """Return the compiled rule ``serve`` of a variant, over the address of a replica."""
    if not CHECKED:
        from kvsim.compiled.translate import entry_of

        return entry_of(engine.serve, variant)
    replica, rule = record_at(Replica, variant), engine.serve

    @register_jitable
    def checked(address, command, argument):
        return rule(replica(address), command, argument)

    return checked


_plain, _general = serve_of("specialized"), serve_of("")
_with_events, _own_order = serve_of("with-events"), serve_of("own-order")


@njit(cache=True, error_model="numpy")
def serve_specialized(address, command, max_steps):
    """Run a command of the host on a replica of the specialized variant."""
    return _plain(address, command, max_steps)


@njit(cache=True, error_model="numpy")
def serve_with_events(address, command, max_steps):
    """Run a command of the host on a replica of the specialized variant with KV cache events."""
    return _with_events(address, command, max_steps)


@njit(cache=True, error_model="numpy")
def serve_own_order(address, command, max_steps):
    """Run a command of the host on a replica with another eviction policy or priorities."""
    return _own_order(address, command, max_steps)


@njit(cache=True, error_model="numpy")
def serve_general(address, command, max_steps):
    """Run a command of the host on any replica."""
    return _general(address, command, max_steps)


#: The entry of every variant.
ENTRIES = {
    "specialized": serve_specialized,
    "with-events": serve_with_events,
    "own-order": serve_own_order,
    "": serve_general,
}
for _engine in all_engines().values():
    ENTRIES |= _engine.entries()


def compile_or_load(entry: Any, signature: tuple[Any, ...]) -> None:
    """Load or compile an entry; the files of a damaged cache are deleted and written again.

    If the cache cannot be written, the entry is compiled for this process only, with a note.
    """
    try:
        entry.compile(signature)
    except OSError as error:
        if not entry.overloads:
            raise
        _say(f"note: compiled code is not cached: {entry.stats.cache_path}: {error.strerror}")
    except Exception:  # unpickling damaged bytes may raise anything
        damaged = list(Path(entry.stats.cache_path).glob(f"*{entry.py_func.__name__}*"))
        if not damaged:
            raise
        for file in damaged:
            file.unlink(missing_ok=True)
        entry.compile(signature)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Let one process at a time compile; a process that waits prints a line.

    If no lock file can be made, as on a full disk, every process compiles.
    """
    held = FileLock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        _say("waiting for another process to compile the code of this run ...")
        held.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        held.release()


def _say(text: str) -> None:
    print(f"kvsim: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a first run is silent


def serve(state: Any) -> Callable[[int, int], int]:
    """Return a function that runs the compiled rules on a replica in flat memory."""
    entry, address = _loaded(variant_of(state)), state.address

    def call(command: int, max_steps: int) -> int:
        return int(entry(address, command, max_steps))

    return call


def address_of(state: Any) -> int:
    """Return the address of the machine code of a replica's rules; 0 if it may raise errors."""
    entry = _loaded(variant_of(state))
    if CHECKED or not hasattr(entry, "overloads"):
        return 0
    (compiled,) = entry.overloads.values()
    name = compiled.fndesc.llvm_cfunc_wrapper_name
    return int(compiled.library.get_pointer_to_function(name))


def _loaded(variant: str) -> Any:
    entry = ENTRIES[variant]
    # A plain function under NUMBA_DISABLE_JIT compiles nothing.
    if hasattr(entry, "compile") and not entry.signatures:
        name, folder = entry.py_func.__name__, Path(entry.stats.cache_path)
        # Of processes that start at the same time, one compiles; the others wait, then load.
        with alone(folder / f"{variant or 'general'}.lock"), linked_at(name):
            if not any(folder.glob(f"*{name}*.nbi")):
                _say("compiling the code of this run, once (up to half a minute) ...")
            compile_or_load(entry, (types.int64, types.int64, types.int64))
    return entry
