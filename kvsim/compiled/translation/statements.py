"""Statements of rules."""

from __future__ import annotations

import ast
from typing import Any

from kvsim.compiled.translation.arrays import address_at
from kvsim.compiled.translation.body import Body, WiderError, joined
from kvsim.compiled.translation.expressions import (
    condition_of,
    field,
    item,
    kind_of_field,
    packed,
    part,
    places_of,
    read,
    value_of,
    write,
)
from kvsim.compiled.translation.kinds import (
    NUMBERS,
    Array,
    UntranslatableError,
    Value,
    constant,
    type_of,
)
from kvsim.compiled.translation.operators import binary, chosen, compared
from kvsim.records.record import item_of


def block(body: Body, statements: list[ast.stmt]) -> None:
    """Write statements, up to the first that leaves the block."""
    for statement in statements:
        if not body.is_open:
            return
        body.line = statement.lineno
        handler = HANDLERS.get(type(statement))
        try:
            if handler is None:
                raise UntranslatableError(type(statement).__name__)
            handler(body, statement)
        except UntranslatableError as error:
            error.line = error.line or statement.lineno
            raise


def _expression(body: Body, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):
        value_of(body, node.value)


def _assign(body: Body, node: ast.Assign) -> None:
    target, value = node.targets[0], node.value
    if len(node.targets) == 1 and isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        values = [value_of(body, one) for one in value.elts]
        for one, found in zip(target.elts, values, strict=True):
            _put(body, one, found)
        return
    found = value_of(body, value)
    for one in node.targets:
        _put(body, one, found)


def _annotated(body: Body, node: ast.AnnAssign) -> None:
    if node.value is None or not isinstance(node.target, ast.Name):
        return
    if not body.infers:
        kind = body.unit.annotated(ast.unparse(node.annotation), body.names)
        _declare(body, node.target.id, kind)
    _put(body, node.target, value_of(body, node.value))


def _declare(body: Body, name: str, kind: Any) -> tuple[Any, str]:
    """Return the memory of a local name that gets a value of a kind."""
    if name not in body.slots:
        wide = body.wider.get(name, kind)
        body.slots[name] = (wide, body.reserve(wide))
    before = body.slots[name][0]
    if before in NUMBERS and kind in NUMBERS and joined(before, kind) != before:
        body.wider[name] = joined(before, kind)
        raise WiderError
    return body.slots[name]


def _put(body: Body, target: ast.expr, value: Value) -> None:
    """Assign a value to a name, a field, an item, or each element of a tuple to its own target."""
    if value.kind is None:
        raise UntranslatableError("a call without a result")
    if isinstance(target, ast.Name):
        body.put(_declare(body, target.id, value.kind), value)
    elif isinstance(target, ast.Tuple):
        for place, one in enumerate(target.elts):
            if not isinstance(one, ast.Name) or one.id != "_":
                _put(body, one, part(body, value, place))
    else:
        write(body, *_place(body, target), value)


def _place(body: Body, target: ast.expr) -> tuple[Any, str]:
    """Return annotation and address of a field or an item."""
    if isinstance(target, ast.Attribute):
        record = value_of(body, target.value)
        return kind_of_field(record, target.attr), field(body, record, target.attr)
    if isinstance(target, ast.Subscript):
        rows = value_of(body, target.value)
        if isinstance(rows.kind, Array):
            return rows.kind.item, address_at(body, rows, places_of(body, target.slice))
        return item_of(rows.kind), item(body, rows, value_of(body, target.slice))
    raise UntranslatableError(f"assignment to {type(target).__name__}")


def _augmented(body: Body, node: ast.AugAssign) -> None:
    if isinstance(node.target, ast.Name):
        before = value_of(body, ast.Name(node.target.id, ast.Load()))
        _put(body, node.target, binary(body, type(node.op), before, value_of(body, node.value)))
        return
    annotation, address = _place(body, node.target)
    before = read(body, annotation, address)
    after = binary(body, type(node.op), before, value_of(body, node.value))
    write(body, annotation, address, after)


def _if(body: Body, node: ast.If) -> None:
    condition = condition_of(body, node.test)
    if condition.known is not None:
        block(body, node.body if condition.known else node.orelse)
        return
    yes, no, end = body.new(), body.new(), body.new()
    body.branch(condition, yes, no if node.orelse else end)
    body.label(yes)
    block(body, node.body)
    body.jump(end)
    if node.orelse:
        body.label(no)
        block(body, node.orelse)
    _label_if_reached(body, end)


def _label_if_reached(body: Body, label: str) -> None:
    if body.is_open or body.has_branch_to(label):
        body.label(label)


def _while(body: Body, node: ast.While) -> None:
    head, inside, end = body.new(), body.new(), body.new()
    body.label(head)
    condition = condition_of(body, node.test)
    if condition.known is None:
        body.branch(condition, inside, end)
        body.label(inside)
    elif not condition.known:
        body.label(end)
        return
    _loop(body, node, head, end)
    body.jump(head)
    _label_if_reached(body, end)


def _loop(body: Body, node: ast.While | ast.For, following: str, end: str) -> None:
    if node.orelse:
        raise UntranslatableError("else of a loop")
    body.loops.append((following, end))
    block(body, node.body)
    body.loops.pop()


def _for(body: Body, node: ast.For) -> None:
    """Write a loop over a range, or the statements once for each element of a tuple."""
    call = node.iter
    if isinstance(call, ast.Tuple) and isinstance(node.target, ast.Name):
        end = body.new()
        for value in [value_of(body, one) for one in call.elts]:
            body.put(_declare(body, node.target.id, value.kind), value)
            following = body.new()
            _loop(body, node, following, end)
            body.label(following)
        body.label(end)
        return
    is_range = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "range"
    if not is_range or not isinstance(node.target, ast.Name):
        raise UntranslatableError("a loop over anything but a range")
    given = [body.cast(value_of(body, one), int) for one in call.args]  # type: ignore[attr-defined]
    start, stop = (constant(0), given[0]) if len(given) == 1 else given[:2]
    step = given[2] if len(given) > 2 else constant(1)
    head, inside, following, end = body.new(), body.new(), body.new(), body.new()
    counter = (int, body.reserve(int))
    body.put(counter, start)
    body.label(head)
    at = body.get(counter)
    is_upward = compared(body, ast.Gt, step, constant(0))
    goes_on = compared(body, ast.Lt, at, stop), compared(body, ast.Gt, at, stop)
    body.branch(chosen(body, is_upward, *goes_on), inside, end)
    body.label(inside)
    body.put(_declare(body, node.target.id, int), at)
    _loop(body, node, following, end)
    body.label(following)
    body.put(counter, binary(body, ast.Add, body.get(counter), step))
    body.jump(head)
    body.label(end)


def _continue(body: Body, node: ast.Continue) -> None:
    body.jump(body.loops[-1][0])


def _break(body: Body, node: ast.Break) -> None:
    body.jump(body.loops[-1][1])


def _return(body: Body, node: ast.Return) -> None:
    kind = body.returns
    if body.returned is not None:
        is_empty = node.value is None or ast.unparse(node.value) == "None"
        found = None if is_empty else value_of(body, node.value).kind  # type: ignore[arg-type]
        body.returned.append(found)
        body.leave()
        return
    if node.value is None or kind is None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            value_of(body, node.value)
        body.do("ret void")
    else:
        value = _returned(body, node.value, kind)
        body.do(f"ret {type_of(kind)} {value.text}")
    body.is_open = False


def _returned(body: Body, node: ast.expr, kind: Any) -> Value:
    if isinstance(kind, tuple):
        if isinstance(node, ast.Tuple):
            return packed(body, [value_of(body, one) for one in node.elts], kind)
        value = value_of(body, node)
        values = [part(body, value, place) for place in range(len(kind))]
        return packed(body, values, kind)
    return body.cast(value_of(body, node), kind)


def _nothing(body: Body, node: ast.stmt) -> None:
    pass


HANDLERS: dict[type[ast.stmt], Any] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.While: _while,
    ast.For: _for,
    ast.Continue: _continue,
    ast.Break: _break,
    ast.Return: _return,
    ast.Pass: _nothing,
    ast.Delete: _nothing,
}
