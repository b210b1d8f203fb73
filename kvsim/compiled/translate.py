"""The rules to translate, and how: records, modules, rules that their callers contain."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from pkgutil import iter_modules, walk_packages
from typing import Any

from kvsim import engines, records, rules
from kvsim.compiled.machine import CHECKED
from kvsim.compiled.own_calls import TEXTS
from kvsim.compiled.translation.unit import Unit
from kvsim.compiled.variants import CONSTANTS, has_rule
from kvsim.records.record import Record
from kvsim.rules import python

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
#: computes many decode steps together, and those that a step calls for each of its requests.
IN_GENERAL = frozenset(
    name
    for line in (
        "accepted_time computing_time",
        "step_time work_time weigh weigh_attention gemm_time decode_time prefill_time host_time",
        "gemms_time head_time swap_time elementwise_time all_reduce_time with_transfers pass_time",
        "record_gap gap_bin record_step is_refused num_waiting allocate_slots plan batch_at cdiv",
        "sits_out next_tokens limit_tokens schedule_next record_planned append_slot",
        "allocate_forked settle_in_flight num_accepted gets_nothing deliver record_growth confirm",
        "count_work count_attention num_pairs num_keys",
    )
    for name in line.split()
)


def all_records() -> list[type[Record]]:
    found: list[Any] = []
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


@cache
def _modules() -> dict[str, str]:
    return dict(rule_modules())


def unit_of(variant: str, *, checked: bool = CHECKED) -> Unit:
    """Return the translation of a variant."""

    def text_of(rule: Any, has_records: bool) -> Any:
        if rule in TEXTS:
            return TEXTS[rule]
        module = _modules().get(rule.__module__)
        is_absent = has_records and module is not None and not has_rule(variant, module)
        return None if is_absent or rule.__module__ == python.__name__ else rule

    def is_inlined(rule: Any) -> bool:
        return rule.__name__ in (SMALL if variant else IN_GENERAL)

    records = {record.__name__: record for record in all_records()}
    return Unit(variant, CONSTANTS[variant], records, text_of, is_inlined, checked=checked)
