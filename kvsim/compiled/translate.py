"""The translation of a variant's rules, linked into Numba's code."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from llvmlite.binding import parse_assembly
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvsim.compiled import entry, own_calls
from kvsim.compiled.translation import calls
from kvsim.compiled.translation.unit import Unit
from kvsim.compiled.variants import CONSTANTS, has_rule
from kvsim.rules import python

calls.PRIMITIVES |= {
    own_calls.call_int: calls.call_address(int),
    own_calls.call_float: calls.call_address(float),
    own_calls.address_of: calls.address_of,
}


@cache
def _modules() -> dict[str, str]:
    return dict(entry.rule_modules())


def unit_of(variant: str) -> Unit:
    def text_of(rule: Any, has_records: bool) -> Any:
        if rule in own_calls.TEXTS:
            return own_calls.TEXTS[rule]
        module = _modules().get(rule.__module__)
        is_absent = has_records and module is not None and not has_rule(variant, module)
        return None if is_absent or rule.__module__ == python.__name__ else rule

    def is_inlined(rule: Any) -> bool:
        return rule.__name__ in (entry.SMALL if variant else entry.OF_RUNS)

    records = {record.__name__: record for record in entry.all_records()}
    return Unit(variant, CONSTANTS[variant], records, text_of, is_inlined)


def entry_of(rule: Any, variant: str) -> Any:
    """Return a compiled function over three numbers; for a record, its address is given."""

    @intrinsic
    def run(typing_context: Any, first: Any, second: Any, third: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            unit = unit_of(variant)
            name = f"kvsim.{variant}.entry.{rule.__module__}.{rule.__name__}"
            codegen = context.codegen()
            library = codegen.create_library(name)
            head = f'target triple = "{codegen._tm.triple}"\n'
            head += f'target datalayout = "{codegen._data_layout}"\n'
            library._final_module.link_in(parse_assembly(head + unit.entry(name, rule)))
            library.finalize()
            context.active_code_library.add_linking_library(library)
            word = ir.IntType(64)
            kind = ir.FunctionType(word, [word] * 3)
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

        return types.int64(types.int64, types.int64, types.int64), generate

    return run
