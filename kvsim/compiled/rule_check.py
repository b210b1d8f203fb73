"""The subset of Python for a user's rules: it compiles, with the same results as in Python."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Syntax that rules may not use, with its name and a replacement.
REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Dict: ("a dictionary", "declare a list with per_block() or per_request()"),
    ast.DictComp: ("a dictionary", "declare a list with per_block() or per_request()"),
    ast.Set: ("a set", "declare a list of ints, 1 for a member"),
    ast.SetComp: ("a set", "declare a list of ints, 1 for a member"),
    ast.List: ("a new list", "declare a list with per_block() or per_request()"),
    ast.ListComp: ("a comprehension", "write a loop"),
    ast.GeneratorExp: ("a comprehension", "write a loop"),
    ast.Slice: ("a slice", "write a loop over indices"),
    ast.Lambda: ("a lambda", "write a method"),
    ast.FunctionDef: ("a function in a function", "write a method"),
    ast.ClassDef: ("a class in a function", "declare fields"),
    ast.Try: ("try", "test the condition first"),
    ast.Raise: ("raise", "return a number that says it"),
    ast.With: ("with", "call functions"),
    ast.Yield: ("yield", "return one number at a time"),
    ast.JoinedStr: ("a text", "use numbers"),
    ast.Import: ("an import", "import at the top of the file"),
    ast.ImportFrom: ("an import", "import at the top of the file"),
    ast.Is: ("is", "compare numbers with =="),
    ast.IsNot: ("is not", "compare numbers with !="),
    ast.In: ("in", "write a loop, or keep a list of 0 and 1"),
    ast.NotIn: ("not in", "write a loop, or keep a list of 0 and 1"),
    ast.Global: ("global", "declare a field"),
    ast.Delete: ("del", "set the item to NONE"),
    ast.Starred: ("a star argument", "pass each argument"),
    ast.Await: ("await", "call functions"),
}
#: Methods of lists and dictionaries that fixed memory does not have.
GROWING = frozenset(
    (
        *("append", "pop", "insert", "remove", "sort", "extend", "clear", "index", "count"),
        *("add", "discard", "get", "items", "keys", "values", "update", "copy"),
    )
)
#: Built-in functions that rules may call.
BUILTINS = frozenset(("abs", "min", "max", "range", "int", "float", "bool", "len", "round"))

#: Classes that :func:`check_promises` has accepted.
_KEPT: set[type[Any]] = set()


def rules_of(cls: type[Any]) -> dict[str, Any]:
    """Return the methods of a user's class and of the user's bases, and the functions they call."""
    found: dict[str, Any] = {}
    for one in cls.__mro__[::-1]:
        if "OPERATIONS" not in one.__dict__ and one is not object and _is_part(one):
            found |= {n: v for n, v in vars(one).items() if isinstance(v, FunctionType)}
    for rule in list(found.values()):
        _add_called(rule, found)
    return found


def _is_part(cls: type) -> bool:
    return hasattr(cls, "OPERATIONS")


def _add_called(rule: Any, found: dict[str, Any]) -> None:
    """Add the functions from a user's files that a rule calls, directly or indirectly."""
    for name in rule.__code__.co_names:
        called = rule.__globals__.get(name)
        if not isinstance(called, FunctionType) or called in found.values():
            continue
        if not called.__module__.startswith("kvsim."):
            found[f"{called.__module__}.{name}"] = called
            _add_called(called, found)


def sources(cls: type[Any]) -> str:
    """Return everything that determines the machine code of a class, as a text."""
    rules = rules_of(cls)
    files = sorted({rule.__code__.co_filename for rule in rules.values()})
    text = [Path(f).read_text(encoding="utf-8") for f in files if Path(f).is_file()]
    if len(text) < len(files):  # defined in a notebook, or by exec
        text += [f"{n}{_code(rule.__code__)}{_numbers(rule)}" for n, rule in rules.items()]
    record = {n: str(kind) for n, kind in cls.record().kinds().items()}
    return "\n".join([cls.__qualname__, *files, *text, str(record)])


def _code(code: Any) -> str:
    return f"{code.co_code!r}{code.co_consts!r}{code.co_names!r}"


def _numbers(rule: Any) -> str:
    """Return the global numbers that a rule uses, which compiled code contains as constants."""
    used = {n: rule.__globals__.get(n) for n in rule.__code__.co_names}
    return str({n: v for n, v in used.items() if isinstance(v, int | float)})


def check_rules(cls: type[Any]) -> None:
    """Check that the rules of a class can be compiled.

    Raises
    ------
    ValueError
        With the file, the line, the refused syntax and a replacement.
    """
    if "__init__" in rules_of(cls):
        where = _place(cls.__init__, 0)
        raise ValueError(
            f"{cls.__name__}.__init__: {where}: declare fields; rules have no __init__"
        )
    for name in cls.OPERATIONS:
        getattr(cls, name)
    for name, rule in rules_of(cls).items():
        if rule.__code__.co_freevars and "__class__" not in rule.__code__.co_freevars:
            free = rule.__code__.co_freevars[0]
            raise ValueError(
                f"{cls.__name__}.{name}: {_place(rule, 0)}: uses {free} of the function around "
                "it; make it a field, or a number at the top of the file"
            )
        tree = _tree_of(rule)
        if tree is None:
            continue  # without source text, the compiler reports errors
        for node, what, instead in _refused(tree, cls, rule):
            place = _place(rule, getattr(node, "lineno", 1) - 1)
            raise ValueError(f"{cls.__name__}.{name}: {place}: rules may not use {what}; {instead}")
    check_promises(cls)


def _tree_of(rule: Any) -> Any:
    """Return the syntax tree of a rule; None if its source is not available."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(rule))).body[0]
    except (OSError, TypeError):
        return None


def check_promises(cls: type[Any]) -> None:
    """Check that rules return a number on every path and write only to their own state.

    Both backends need this.

    Raises
    ------
    ValueError
        With the file, the line, and what is allowed.
    """
    if cls in _KEPT:
        return
    for name, rule in rules_of(cls).items():
        tree = _tree_of(rule)
        if tree is None or name == "__init__":
            continue
        for line, what in _foreign_stores(tree, cls, name):
            raise ValueError(f"{cls.__name__}.{name}: {_place(rule, line - 1)}: {what}")
        if name in cls.RETURNS and (line := _without_value(tree)):
            place = _place(rule, line - 1)
            raise ValueError(f"{cls.__name__}.{name}: {place}: must return a number on every path")
    _KEPT.add(cls)


def _foreign_stores(tree: Any, cls: type[Any], name: str) -> Iterator[tuple[int, str]]:
    """Yield (line, error) for writes to a parameter field or to one of kvsim's records."""
    given = [argument.arg for argument in tree.args.args]
    records = _records(tree, cls) | set(given[1:2] if name in cls.TAKES else ())
    own = given[0] if hasattr(cls, name) and given else None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)]
    aliases = _aliases(tree)
    for node in nodes:
        root, field = _root(node, aliases)
        if isinstance(node.ctx, ast.Load):
            continue
        if root in records and field not in cls.WRITES:
            kinds = " or ".join(f"per_{one}()" for one in cls.SIZES[::-1])
            instead = f"keep the number in state of your own, declared with {kinds}"
            yield node.lineno, f"rules may not write to {root}.{field}; {instead}"
        if root == own and field not in cls._sized:
            instead = f"declare it as state, {field}: int = per_replica()"
            yield node.lineno, f"rules may not write to {root}.{field}; {instead}"


def _records(tree: Any, cls: type[Any]) -> set[str]:
    """Return the arguments that are annotated as kvsim's records."""
    kinds = {record.__name__ for record in cls.TAKES.values()}
    return {one.arg for one in tree.args.args if _last_name(one.annotation) in kinds}


def _aliases(tree: Any) -> dict[str, Any]:
    """Return by variable the expression that is assigned to it."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return {n.targets[0].id: n.value for n in found if isinstance(n.targets[0], ast.Name)}


def _last_name(annotation: Any) -> str:
    """Return the name of the class in an annotation, without its module."""
    found = getattr(annotation, "value", None) if isinstance(annotation, ast.Constant) else None
    return str(found or getattr(annotation, "id", getattr(annotation, "attr", "")))


def _root(node: Any, aliases: Mapping[str, Any]) -> tuple[str, str]:
    """Return the variable that an expression begins with, and the first field after it."""
    field, seen = "", set[str]()
    while True:
        if isinstance(node, ast.Attribute):
            field, node = node.attr, node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Name) and node.id in aliases and node.id not in seen:
            seen.add(node.id)
            value = aliases[node.id]
            if not isinstance(value, ast.Attribute | ast.Subscript | ast.Name):
                return node.id, field
            node = value
        else:
            return getattr(node, "id", ""), field


def _without_value(tree: Any) -> int:
    """Return the line of a return without a value, or of an end without a return; 0 for none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and _is_none(node.value):
            return node.lineno
    return 0 if _returns(tree.body) else int(tree.body[-1].lineno)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _returns(body: list[Any]) -> bool:
    """Return True if every path through statements returns, raises or loops without end."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _returns(last.body) and _returns(last.orelse)
    if isinstance(last, ast.While):
        endless = isinstance(last.test, ast.Constant) and bool(last.test.value)
        return endless and not any(isinstance(node, ast.Break) for node in ast.walk(last))
    return isinstance(last, ast.Return | ast.Raise)


def _place(rule: Any, line: int) -> str:
    return f"{rule.__code__.co_filename}:{rule.__code__.co_firstlineno + line}"


def _refused(tree: Any, cls: type[Any], rule: Any) -> Iterator[tuple[Any, str, str]]:
    """Yield (node, name, replacement) for the syntax in a rule that is not allowed."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    skipped = {tree, *ast.walk(tree.args), *(ast.walk(tree.returns) if tree.returns else ())}
    for node in ast.walk(tree):
        said = None if node in skipped else _refused_node(node, tree, parents, cls, rule)
        if said is not None:
            line = node
            while not hasattr(line, "lineno") and line in parents:
                line = parents[line]
            yield line, *said


def _refused_node(
    node: Any, tree: Any, parents: Mapping[Any, Any], cls: type[Any], rule: Any
) -> tuple[str, str] | None:
    """Return (name, replacement) if a node is not allowed, else None."""
    if type(node) in REFUSED:
        return REFUSED[type(node)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parent = parents[node]
        is_docstring = isinstance(parent, ast.Expr) and parents[parent] is tree
        return None if is_docstring else ("a text", "use numbers")
    return _refused_call(node.func, cls, rule) if isinstance(node, ast.Call) else None


def _is_numpy(owner: Any, rule: Any) -> bool:
    module = rule.__globals__.get(owner.id) if isinstance(owner, ast.Name) else None
    return getattr(module, "__name__", "") == "numpy"


def _refused_call(called: Any, cls: type[Any], rule: Any) -> tuple[str, str] | None:
    """Return (name, replacement) for a call of a method of growing lists or of a built-in."""
    if isinstance(called, ast.Name):
        name = called.id
        if name not in rule.__globals__ and hasattr(builtins, name) and name not in BUILTINS:
            if name in ("print", "breakpoint"):
                return f"{name}()", "run it with backend python to debug"
            return f"{name}()", "write a loop over numbers"
    elif isinstance(called, ast.Attribute) and called.attr in GROWING:
        owner = called.value
        if not (isinstance(owner, ast.Name) and owner.id == "self" and hasattr(cls, called.attr)):
            if _is_numpy(owner, rule):
                return f"NumPy's {called.attr}()", "use min, max, math or a loop"
            instead = "lists have a fixed size; kvsim.plugins.eviction has Queue, append, remove"
            return f".{called.attr}()", instead
    return None
