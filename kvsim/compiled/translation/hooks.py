"""Calls of rules with several versions: by kind of attention, and hooks of features."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from kvsim.compiled.translation.kinds import Value, constant
from kvsim.compiled.translation.operators import compared
from kvsim.dispatch import FEATURES
from kvsim.records.part import Part

if TYPE_CHECKING:
    from kvsim.compiled.translation.body import Body
    from kvsim.dispatch import ByKind, Hook


def call_by_kind(body: Body, called: ByKind, kind: Value, *given: Value) -> Value:
    """Write a call of the version of a rule for a kind of attention."""
    versions = called.versions()
    if kind.known is not None:
        version: Value = body.unit.call(body, versions[kind.known], [*given])
        return version
    most = max(versions, key=versions.count)
    others = [number for number, one in enumerate(versions) if one is not most]
    end, slot = body.new(), None
    for number in (*others, None):
        following = body.new()
        if number is not None:
            chosen = body.new()
            body.branch(compared(body, ast.Eq, kind, constant(number)), chosen, following)
            body.label(chosen)
        found = body.unit.call(body, most if number is None else versions[number], [*given])
        if found.kind is not None:
            slot = slot or (found.kind, body.reserve(found.kind))
            body.put(slot, found)
        body.jump(end)
        if number is not None:
            body.label(following)
    body.label(end)
    return Value(None, "") if slot is None else body.get(slot)


def call_hook(body: Body, called: Hook, parts: Value, *given: Value) -> Value:
    """Write the calls of a hook for each feature that is on."""
    from kvsim.compiled.translation.expressions import field, item, read

    kind: Any = int if called.passes else bool
    slot, end = (kind, body.reserve(kind)), body.new()
    body.put(slot, given[-1] if called.passes else constant(value=False))
    for place, feature in enumerate(FEATURES.all()):
        part = Value(Part, item(body, parts, constant(place)))
        address = read(body, int, field(body, part, "address"))
        on, following = body.new(), body.new()
        body.branch(body.truth(address), on, following)
        body.label(on)
        own = Value(feature, body.write(f"inttoptr i64 {address.text} to {body.unit.pointer}"))
        passed = (*given[:-1], body.get(slot)) if called.passes else given
        found = body.unit.call(body, getattr(feature, called.name), [own, *passed])
        if found.kind is not None:
            body.put(slot, found)
        if found.kind is bool and not called.passes:
            body.branch(found, end, following)
        body.label(following)
    body.label(end)
    return body.get(slot)
