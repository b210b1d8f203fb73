"""Expressions of rules."""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any

from kvsim.compiled.translation.arrays import address_at, cut, row_of, shape_of
from kvsim.compiled.translation.body import Body, joined
from kvsim.compiled.translation.calls import call
from kvsim.compiled.translation.checks import check_index
from kvsim.compiled.translation.kinds import (
    POINTER,
    Array,
    UntranslatableError,
    Value,
    constant,
    is_list,
    kind_of,
    size_of,
    stored_type,
    type_of,
)
from kvsim.compiled.translation.operators import binary, compared, negated
from kvsim.records.record import is_record, item_of, strip_width


def value_of(body: Body, node: ast.expr) -> Value:
    """Write an expression; return its value."""
    handler = HANDLERS.get(type(node))
    if handler is None:
        raise UntranslatableError(type(node).__name__)
    found: Value = handler(body, node)
    return found


def _constant(body: Body, node: ast.Constant) -> Value:
    return constant(node.value)


def global_of(body: Body, node: ast.expr) -> Any:
    """Return the object of a global name, or of an attribute of a module or class."""
    if isinstance(node, ast.Name) and node.id not in body.slots:
        builtins = body.names["__builtins__"]
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        return body.names.get(node.id, builtins.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = global_of(body, node.value)
        if isinstance(owner, ModuleType | type):
            return getattr(owner, node.attr, None)
    return None


def _name(body: Body, node: ast.Name) -> Value:
    if node.id in body.slots:
        return body.get(body.slots[node.id])
    found = global_of(body, node)
    if found is None:
        raise UntranslatableError(f"Unknown name '{node.id}'")
    return constant(found)


def _attribute(body: Body, node: ast.Attribute) -> Value:
    found = global_of(body, node)
    if found is not None:
        return constant(found)
    record = value_of(body, node.value)
    if isinstance(record.kind, Array) and node.attr == "shape":
        return shape_of(body, record)
    if not is_record(record.kind):
        raise UntranslatableError(f"attribute {node.attr} of {record.kind}")
    derived = body.unit.derived(record.kind, node.attr)
    if derived is not None:
        result: Value = body.unit.call(body, derived, [record])
        return result
    known = body.unit.constants.get(f"{record.kind.__name__}.{node.attr}")
    annotation = kind_of_field(record, node.attr)
    if known is not None:
        return constant(bool(known) if strip_width(annotation) is bool else int(known))
    return read(body, annotation, field(body, record, node.attr))


def kind_of_field(record: Value, name: str) -> Any:
    """Return the annotation of a field."""
    if name not in record.kind.kinds():
        raise UntranslatableError(f"Unknown attribute '{name}' of {record.kind.__name__}")
    return record.kind.kinds()[name]


def field(body: Body, record: Value, name: str) -> str:
    """Return the address of a field."""
    return body.offset(record.text, str(record.kind.dtype().fields[name][1]))


def read(body: Body, annotation: Any, address: str) -> Value:
    """Read a field or an item at an address; a record there is the address itself."""
    kind = kind_of(annotation)
    if is_record(kind):
        return Value(kind, address)
    if is_list(kind):  # in checked code, the address of its address and length
        return Value(kind, address if body.unit.checked else body.load(POINTER, address))
    stored, wanted = stored_type(annotation), type_of(kind)
    text = body.load(stored, address)
    if stored != wanted:
        text = body.write(f"{'trunc' if kind is bool else 'sext'} {stored} {text} to {wanted}")
    return Value(kind, text)


def write(body: Body, annotation: Any, address: str, value: Value) -> None:
    """Write a number, or the address of a list, to a field or an item at an address."""
    kind = kind_of(annotation)
    if is_record(kind):
        raise UntranslatableError(f"assignment of {annotation}")
    if is_list(kind):
        _write_list(body, value, address)
        return
    stored, given, text = stored_type(annotation), type_of(kind), body.cast(value, kind).text
    if stored != given:
        text = body.write(f"{'zext' if kind is bool else 'trunc'} {given} {text} to {stored}")
    body.store(stored, text, address)


def _write_list(body: Body, value: Value, address: str) -> None:
    if not body.unit.checked:
        body.store(POINTER, value.text, address)
        return
    for place in ("0", "8"):
        word = body.load("i64", body.offset(value.text, place))
        body.store("i64", word, body.offset(address, place))


def item(body: Body, rows: Value, place: Value) -> str:
    """Return the address of an item of a list."""
    if not is_list(rows.kind):
        raise UntranslatableError(f"an index of {rows.kind}")
    index, first = body.cast(place, int).text, rows.text
    if body.unit.checked:
        length = body.load("i64", body.offset(rows.text, "8"))
        check_index(body, index, length)
        first = body.load(POINTER, rows.text)
    offset = body.write(f"mul nsw i64 {index}, {size_of(item_of(rows.kind))}")
    return body.offset(first, offset)


def _subscript(body: Body, node: ast.Subscript) -> Value:
    sequence = global_of(body, node.value)
    if isinstance(sequence, tuple):
        place = value_of(body, node.slice).known
        return constant(sequence[place])
    rows = value_of(body, node.value)
    if isinstance(rows.kind, tuple):
        return _of_tuple(body, rows, node.slice)
    if isinstance(rows.kind, Array):
        return _of_array(body, rows, node.slice)
    return read(body, item_of(rows.kind), item(body, rows, value_of(body, node.slice)))


def _of_tuple(body: Body, value: Value, place: ast.expr) -> Value:
    """Return an element of a tuple, or its first elements."""
    if not isinstance(place, ast.Slice):
        return part(body, value, value_of(body, place).known)
    if place.upper is None or place.lower or place.step:
        raise UntranslatableError("a part of a tuple other than its first elements")
    number = value_of(body, place.upper).known
    values = [part(body, value, at) for at in range(number)]
    return packed(body, values, value.kind[:number])


def _of_array(body: Body, array: Value, place: ast.expr) -> Value:
    """Return an item, a row or a slice of an array."""
    if isinstance(place, ast.Slice):
        ends = [None if one is None else value_of(body, one) for one in (place.lower, place.upper)]
        return cut(body, array, *ends)
    places = places_of(body, place)
    if len(places) < array.kind.ndim:
        return row_of(body, array, places[0])
    return read(body, array.kind.item, address_at(body, array, places))


def places_of(body: Body, node: ast.expr) -> list[Value]:
    """Return the indices of an item of an array, one by dimension."""
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [body.cast(value_of(body, one), int) for one in nodes]


def part(body: Body, value: Value, place: int) -> Value:
    """Return an element of a tuple."""
    text = f"extractvalue {type_of(value.kind)} {value.text}, {place}"
    return Value(value.kind[place], body.write(text))


def _tuple(body: Body, node: ast.Tuple) -> Value:
    values = [value_of(body, one) for one in node.elts]
    return packed(body, values, tuple(one.kind for one in values))


def packed(body: Body, values: list[Value], kind: tuple[Any, ...]) -> Value:
    """Return a tuple of values."""
    text = "undef"
    for place, (one, wanted) in enumerate(zip(values, kind, strict=True)):
        element = f"{type_of(wanted)} {body.cast(one, wanted).text}"
        text = body.write(f"insertvalue {type_of(kind)} {text}, {element}, {place}")
    return Value(kind, text)


def _binary(body: Body, node: ast.BinOp) -> Value:
    left, right = value_of(body, node.left), value_of(body, node.right)
    return binary(body, type(node.op), left, right)


def _unary(body: Body, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        found = condition_of(body, node.operand)
        known = None if found.known is None else not found.known
        return Value(bool, body.write(f"xor i1 {found.text}, true"), known)
    value = value_of(body, node.operand)
    if isinstance(node.op, ast.USub):
        return negated(body, value)
    if isinstance(node.op, ast.Invert):
        return binary(body, ast.BitXor, body.cast(value, int), constant(-1))
    raise UntranslatableError(type(node.op).__name__)


def _compare(body: Body, node: ast.Compare) -> Value:
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return _membership(body, node)
    left = value_of(body, node.left)
    found: Value | None = None
    for operator, operand in zip(node.ops, node.comparators, strict=True):
        right = value_of(body, operand)  # without effects, so computed in either case
        one = compared(body, type(operator), left, right)
        left = right
        if found is None:
            found = one
        else:
            found = Value(bool, body.write(f"and i1 {found.text}, {one.text}"))
    assert found is not None
    return found


def _membership(body: Body, node: ast.Compare) -> Value:
    value, among = value_of(body, node.left), node.comparators[0]
    if isinstance(among, ast.Tuple):
        members = [value_of(body, one) for one in among.elts]
    else:
        constants = global_of(body, among)
        if constants is None:
            raise UntranslatableError(f"in {ast.unparse(among)}")
        members = [constant(one) for one in constants]
    found = constant(value=False)
    for one in members:
        equal = compared(body, ast.Eq, value, one)
        found = Value(bool, body.write(f"or i1 {found.text}, {equal.text}"))
    if isinstance(node.ops[0], ast.NotIn):
        return Value(bool, body.write(f"xor i1 {found.text}, true"))
    return found


def condition_of(body: Body, node: ast.expr) -> Value:
    """Write an expression of which only the truth is needed."""
    if isinstance(node, ast.BoolOp):
        return _boolean(body, node, condition_of)
    return body.truth(value_of(body, node))


def _boolean(body: Body, node: ast.BoolOp, operand_of: Any = value_of) -> Value:
    """Write ``and`` or ``or`` of bools; operands after a deciding one are not computed."""
    decides = isinstance(node.op, ast.Or)
    slot, end = (bool, body.reserve(bool)), body.new()
    for operand in node.values[:-1]:
        value = operand_of(body, operand)
        if value.known is None:
            body.put(slot, value)
            following = body.new()
            body.branch(value, *((end, following) if decides else (following, end)))
            body.label(following)
        elif value.known is decides:
            return _ended(body, slot, value, end)
    value = operand_of(body, node.values[-1])
    return _ended(body, slot, value, end)


def _ended(body: Body, slot: tuple[Any, str], last: Value, end: str) -> Value:
    """End a condition with its last operand; it is constant if no other operand was computed."""
    is_alone = not body.has_branch_to(end)
    body.put(slot, last)
    body.label(end)
    return last if is_alone else body.get(slot)


def _if(body: Body, node: ast.IfExp) -> Value:
    condition = condition_of(body, node.test)
    if condition.known is not None:
        return value_of(body, node.body if condition.known else node.orelse)
    yes, no, end = body.new(), body.new(), body.new()
    body.branch(condition, yes, no)
    body.label(yes)
    first = value_of(body, node.body)
    last = body.new()
    body.label(last)
    body.is_open = False  # the jump to the end is written below, when both kinds are known
    at = body.mark()
    body.label(no)
    second = value_of(body, node.orelse)
    kind = joined(first.kind, second.kind)
    slot = (kind, body.reserve(kind))
    body.put(slot, second)
    body.jump(end)
    with body.at(at):
        body.put(slot, first)
        body.do(f"br label %{end}")
    body.label(end)
    return body.get(slot)


def _call(body: Body, node: ast.Call) -> Value:
    return call(body, node, value_of, global_of)


HANDLERS: dict[type[ast.expr], Any] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Tuple: _tuple,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _if,
    ast.Call: _call,
}
