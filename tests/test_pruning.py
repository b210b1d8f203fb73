"""What the pruner folds, and that a folded rule computes the same."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from itertools import product

import pytest
from numba import types

from kvsim.compiled.cache import load_entry
from kvsim.compiled.variants import SPECIALIZED
from kvsim.records.engine import Limits, Replica
from kvsim.rules.vllm import features

load_entry()  # what is compiled is imported by this alone
pruned = import_module("kvsim.compiled.pruning").pruned
Ref = import_module("kvsim.compiled.types").Ref

LIMITS = Ref(Limits, "specialized")
FIELDS = ("num_drafts", "max_loras", "has_encoder")
OFF = {f"Limits.{name}": 0 for name in FIELDS}
LARGE = 2


def nested(limits, value):
    if limits.num_drafts > 0:
        value += 1
        if limits.max_loras == LARGE or value > LARGE:
            return value * 10
    elif not limits.has_encoder:
        value = value + 2 if limits.max_loras else value + 3
    else:
        return -value
    while limits.has_encoder and value < 5:
        value += 4
    return value


def either(limits, value):
    first = value > 1 or limits.num_drafts > 0
    second = value > 1 and limits.max_loras < LARGE
    third = limits.has_encoder and value > 2
    return (first, bool(second), bool(third))


def locals_too(limits, value):
    own = limits
    if own.num_drafts and value:
        return 1
    return 2


def reassigned(limits, value):
    own = limits
    if value:
        own = value
    if own == 1:
        return 1
    return 2


def one_branch(limits, value):
    if limits.num_drafts:
        value.add(1)


@pytest.mark.parametrize("rule", [nested, either, locals_too], ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("known", list(product((0, 1, 2), repeat=3)), ids=str)
def test_a_pruned_rule_computes_the_same(rule, known):
    limits = Limits()
    for name, value in zip(FIELDS, known, strict=True):
        setattr(limits, name, value)
    constants = {f"Limits.{name}": value for name, value in zip(FIELDS, known, strict=True)}
    short = pruned(rule, {"limits": LIMITS, "value": types.int64}, constants)
    assert short is not rule
    for value in range(5):
        assert short(limits, value) == rule(limits, value)


def test_a_rule_whose_only_branch_is_never_taken_does_nothing():
    assert pruned(one_branch, {"limits": LIMITS}, OFF)(Limits(), None) is None


def names_in(rule) -> set[str]:
    return set(rule.__code__.co_names)


def test_branches_never_taken_are_gone():
    short = pruned(nested, {"limits": LIMITS, "value": types.int64}, OFF)
    assert names_in(short) == set()
    assert names_in(pruned(locals_too, {"limits": LIMITS, "value": types.int64}, OFF)) == set()


def test_what_is_unknown_stays():
    parameters = {"limits": LIMITS, "value": types.int64}
    assert pruned(nested, parameters, {}) is nested
    assert pruned(reassigned, parameters, OFF) is reassigned
    assert pruned(nested, {"limits": types.int64, "value": types.int64}, OFF) is nested


def test_a_feature_that_is_off_is_not_called():
    replica = Ref(Replica, "specialized")
    short = pruned(features.begin_features, {"state": replica}, SPECIALIZED)
    assert "begin_encoding" not in names_in(short)
    assert "begin_encoding" in names_in(features.begin_features)


def test_a_pruned_rule_keeps_its_lines():
    """Errors of checked mode name the line of the rule as it stands."""
    short = pruned(nested, {"limits": LIMITS, "value": types.int64}, OFF)
    first = inspect.getsourcelines(nested)[1]
    assert short.__code__.co_filename == __file__
    assert short.__code__.co_firstlineno == first
    assert ast.parse(inspect.getsource(nested))
