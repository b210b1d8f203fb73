"""Pruning of rules: branches that a variant never takes are not compiled.

A condition such as ``state.limits.has_encoder`` is constant in a variant. Numba gets only the
branch that it selects, so it need not type the rules that other branches call.
"""

from __future__ import annotations

import ast
import inspect
import operator
import textwrap
from typing import TYPE_CHECKING, Any

from kvsim.compiled.types import Ref, Rows, numba_type

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A constant value; None stands for an unknown value.
Value = int | bool | None

COMPARED: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def pruned(rule: Any, types: Mapping[str, Any], constants: Mapping[str, int]) -> Any:
    """Return a rule without the branches that are never taken under the given constants.

    Parameters
    ----------
    rule : a function of ``kvsim.rules``
    types : the Numba type of each parameter, by its name
    constants : values by "Record.field"

    Returns
    -------
    The rule itself if no condition is constant, else a new function with its name and globals.
    """
    lines, first = inspect.getsourcelines(rule)
    tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return rule
    definition.returns, definition.decorator_list = None, []
    for argument in definition.args.args:
        argument.annotation = None
    pruner = _Pruner(_local_types(definition, types), constants, rule.__globals__)
    definition.body = pruner.block(definition.body) or [ast.Pass()]
    if not pruner.has_folded:
        return rule
    found: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(tree), rule.__code__.co_filename, "exec")
    exec(code, rule.__globals__, found)
    return found[rule.__name__]


def _local_types(definition: ast.FunctionDef, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Numba types of parameters and of locals that hold a record or a list.

    A name of several types, or of an unknown one, maps to None.
    """
    known = dict(parameters)
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, kind = node.targets[0].id, _type_of(node.value, known)
            known[name] = kind if known.get(name, kind) == kind else None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.setdefault(node.id, None)
    return known


def _type_of(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Subscript):
        rows = _type_of(node.value, known)
        return rows.item if isinstance(rows, Rows) else None
    if isinstance(node, ast.Attribute):
        ref = _type_of(node.value, known)
        kind = ref.record.kinds().get(node.attr) if isinstance(ref, Ref) else None
        return None if kind is None else numba_type(kind, ref.variant)
    return None


class _Pruner:
    """Folds the constant conditions of one function."""

    def __init__(
        self, types: Mapping[str, Any], constants: Mapping[str, int], names: Mapping[str, Any]
    ) -> None:
        self.types, self.constants, self.names = types, constants, names
        self.has_folded = False

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Fold the statements of a block, and drop those after a return, continue or break."""
        kept: list[ast.stmt] = []
        for statement in body:
            kept += self.statement(statement)
            if kept and isinstance(kept[-1], ast.Return | ast.Continue | ast.Break):
                break
        return kept

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Fold a statement; an ``if`` with a constant condition becomes one of its branches."""
        if isinstance(node, ast.If | ast.While):
            value, node.test = self.fold(node.test)
            if value is not None and isinstance(node, ast.If):
                self.has_folded = True
                return self.block(node.body if value else node.orelse)
            if value is not None and not value:
                self.has_folded = True
                return []
        if isinstance(node, ast.If | ast.While | ast.For):
            node.body = self.block(node.body) or [ast.Pass()]
            node.orelse = self.block(node.orelse)
        else:
            for field in ("value", "test"):
                value = getattr(node, field, None)
                if isinstance(value, ast.expr):
                    setattr(node, field, self.fold(value)[1])
        return [node]

    def fold(self, node: ast.expr) -> tuple[Value, ast.expr]:
        """Return (constant value of an expression, None if unknown; its folded form)."""
        if isinstance(node, ast.BoolOp):
            return self.fold_operands(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value, node.operand = self.fold(node.operand)
            return (None if value is None else not value), node
        if isinstance(node, ast.IfExp):
            value, node.test = self.fold(node.test)
            if value is not None:
                self.has_folded = True
                return self.fold(node.body if value else node.orelse)
            node.body, node.orelse = self.fold(node.body)[1], self.fold(node.orelse)[1]
            return None, node
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.fold(node.left)[0], self.fold(node.comparators[0])[0]
            compare = COMPARED.get(type(node.ops[0]))
            if compare is None or left is None or right is None:
                return None, node
            return bool(compare(left, right)), node
        return self.value_of(node), node

    def fold_operands(self, node: ast.BoolOp) -> tuple[Value, ast.expr]:
        """Drop operands of ``and`` or ``or`` without effect, and those after a deciding one."""
        decides = isinstance(node.op, ast.Or)
        kept: list[ast.expr] = []
        value: Value = None
        for operand in node.values:
            value, folded = self.fold(operand)
            if value is None:
                kept.append(folded)
            elif bool(value) is decides:
                kept.append(ast.Constant(bool(value)))
                break
        if not kept:
            return not decides, node
        self.has_folded |= len(kept) < len(node.values)
        if len(kept) == 1:
            return (value if isinstance(kept[0], ast.Constant) else None), kept[0]
        node.values = kept
        return None, node

    def value_of(self, node: ast.expr) -> Value:
        """Return the value of a constant field, a number or a global int; None if unknown."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id not in self.types:
            value = self.names.get(node.id)
            return value if isinstance(value, int) else None
        if isinstance(node, ast.Attribute):
            ref = _type_of(node.value, self.types)
            if isinstance(ref, Ref):
                return self.constants.get(f"{ref.record.__name__}.{node.attr}")
        return None
