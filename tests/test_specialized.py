"""The hand-written lists of the compiled variants name what exists."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

from kvsim.attention.spec import AttentionSpec
from kvsim.compiled.translate import IN_GENERAL, SMALL, rule_modules
from kvsim.compiled.variants import CONSTANTS, OTHER_KINDS, OTHER_MEMORY, READ, SPECIALIZED
from kvsim.compiled.variants import has_rule as is_compiled
from kvsim.engines.sglang.variants import OF_POOLS, OF_SGLANG
from kvsim.records.engine import Limits
from kvsim.records.record import Record


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax trees of all modules of rules, by name."""
    return {
        name: ast.parse(Path(str(import_module(module).__file__)).read_text())
        for module, name in rule_modules()
    }


def functions_of(module: ast.Module) -> set[str]:
    return {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


def test_functions_to_inline_exist():
    rules = set().union(*map(functions_of, trees().values())) | vars(AttentionSpec).keys()
    assert rules >= SMALL | IN_GENERAL


def test_modules_of_a_variant_exist():
    packages = {name.partition(".")[0] for name in trees()}
    assert packages | set(trees()) >= OTHER_KINDS | OF_SGLANG | OF_POOLS


def test_constants_are_fields_of_records():
    below = [kind for kind in records_below(Record) if ".records." in kind.__module__]
    kinds = {kind.__name__: kind.kinds() for kind in below}
    for constants in CONSTANTS.values():
        for name in constants:
            record, field = name.split(".")
            assert field in kinds[record], name


def test_a_limit_has_its_default_in_the_specialized_variant_unless_it_is_read():
    limits = {name: getattr(Limits(), name) for name in Limits.kinds()}
    assert set(limits) >= READ
    fixed = {f"Limits.{name}": limits[name] for name in set(limits) - READ}
    assert fixed.items() <= SPECIALIZED.items()
    assert not any(f"Limits.{name}" in SPECIALIZED for name in READ)


def records_below(kind: type[Record]) -> list[type[Record]]:
    below = kind.__subclasses__()
    return below + [one for each in below for one in records_below(each)]


def test_no_rule_counts_in_a_constant_of_other_memory():
    records = {"state": "Replica", "kv": "KV", "group": "KVGroup", "pool": "BlockPool"}
    fixed = set(OTHER_MEMORY) - {"Replica.num_idle"}  # counted with sessions only
    for name, module in trees().items():
        for node in ast.walk(module) if is_compiled("other-memory", name) else ():
            target = node.target if isinstance(node, ast.AugAssign) else None
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                assert f"{records.get(target.value.id)}.{target.attr}" not in fixed


def test_the_general_variant_has_every_rule_of_vllm():
    for module in trees():
        assert is_compiled("", module) != module.startswith("sglang.")
