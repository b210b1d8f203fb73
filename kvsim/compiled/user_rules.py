"""Machine code of a user's rules: one entry per operation, cached by a hash of the sources."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError, TypingError
from numba.extending import overload, overload_attribute, overload_method

from kvsim.compiled.cache import cache_folder
from kvsim.compiled.entry import alone, compile_or_load
from kvsim.compiled.linking import linked_at
from kvsim.compiled.own_calls import float_at
from kvsim.compiled.passes import WITHOUT_WRAPPERS
from kvsim.compiled.rule_check import check_rules, rules_of, sources
from kvsim.compiled.types import CHECKED, Ref, own_ref, record_at

if TYPE_CHECKING:
    from collections.abc import Callable

#: Types of an entry's arguments: the address of the state, and two arguments of the operation.
ARGUMENTS = (types.int64,) * 3

#: The error for a result that would be truncated to a whole number.
WRONG_TYPE = "must return a whole number (// and int() make one)"

_addresses: dict[type[Any], list[int]] = {}
_entries: list[Any] = []  # keeps dispatchers alive, and with them their machine code
_registered: set[Any] = set()


def addresses(cls: type[Any]) -> list[int]:
    """Return the address of each operation of a class of rules; 0 for one that is not defined.

    Raises
    ------
    ValueError
        If a rule uses syntax that is not allowed, with its file and line.
    """
    if cls not in _addresses:
        check_rules(cls)
        _addresses[cls] = _load(cls)
    return _addresses[cls]


def _load(cls: type[Any]) -> list[int]:
    """Compile or load the operations of a class; return their addresses."""
    kind = own_ref(cls.record())
    _register(cls, kind)
    text, folder = _text(cls), cache_folder() / "parts"
    digest = hashlib.sha256((sources(cls) + text).encode()).hexdigest()[:16]
    name = f"part_{digest}_{cls.__name__}"
    path = folder / f"{name}.py"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    with alone(folder / f"{name}.lock"):
        if not path.exists():
            with suppress(OSError):
                path.write_text(text, encoding="utf-8")
        module: Any = ModuleType(name)
        sys.modules[name] = module
        module.__file__ = str(path)
        rules = {f"rule_{n}": getattr(cls, n) for n in cls.OPERATIONS if hasattr(cls, n)}
        taken = {f"take_{n}": record_at(record, "") for n, record in cls.TAKES.items()}
        taken |= {"part_at": record_at(cls.record(), "", kind), "whole": whole}
        module.__dict__.update(rules | taken)
        exec(compile(text, str(path), "exec"), module.__dict__)
        return [_address(cls, module, n) if _is_own(cls, n) else 0 for n in cls.OPERATIONS]


def _text(cls: type[Any]) -> str:
    """Return the source of the entries; their first argument is the address of the state."""
    lines = []
    for name in cls.OPERATIONS:
        if _is_own(cls, name):
            count = getattr(cls, name).__code__.co_argcount - 1
            first = f"take_{name}(first)" if name in cls.TAKES else "first"
            is_timed = name in cls.TAKES and hasattr(cls, "now")
            given = (first, "part_at(own).now" if is_timed else "second")
            call = f"rule_{name}({', '.join(['part_at(own)', *given[:count]])})"
            lines.append(f"def {name}(own, first, second):")
            if name in cls.RETURNS:
                kind = "whole" if cls.RETURNS[name] is int else "float"
                lines.append(f"    return {kind}({call})\n")
            else:
                lines.append(f"    {call}\n    return 0\n")
    return "\n".join(lines)


def whole(value: Any) -> int:
    """Return a rule's result as an int."""
    return int(value)


@overload(whole)
def _whole(value):  # type: ignore[no-untyped-def]
    if not isinstance(value, types.Integer | types.Boolean):
        raise TypingError(f"{WRONG_TYPE}, not {value}")

    def answer(value):  # type: ignore[no-untyped-def]
        return np.int64(value)

    return answer


def _is_own(cls: type[Any], name: str) -> bool:
    return name in rules_of(cls)


def _register(cls: type[Any], kind: type[Ref]) -> None:
    """Make the methods of a class, and the functions that they call, callable in compiled code."""
    if hasattr(cls, "now"):
        overload_attribute(kind, "now")(lambda self: lambda self: float_at(self.clock_address))
    if hasattr(cls, "goes_on"):
        overload_attribute(kind, "goes_on")(
            lambda self: lambda self: float_at(self.goes_on_address)
        )
        overload_attribute(kind, "hint")(lambda self: lambda self: float_at(self.hint_address))
    for name, rule in rules_of(cls).items():
        if rule not in _registered:
            _registered.add(rule)
            overload(rule, jit_options=WITHOUT_WRAPPERS, strict=False)(
                lambda *args, rule=rule: rule
            )
        if hasattr(cls, name):
            given = ", ".join(inspect.signature(rule).parameters)
            chosen = eval(f"lambda {given}: rule", {"rule": rule})
            overload_method(kind, name, jit_options=WITHOUT_WRAPPERS, strict=False)(chosen)


def _address(cls: type[Any], module: Any, name: str) -> int:
    """Return the address of an operation's machine code."""
    function = getattr(module, name)
    if not hasattr(function, "__code__") or not hasattr(njit(function), "compile"):
        return 0  # under NUMBA_DISABLE_JIT
    if CHECKED and cls.BY_C:
        return 0
    folder = Path(module.__file__).parent
    entry: Any = _cached(function, folder)
    with linked_at(name, function.__qualname__):
        try:
            compile_or_load(entry, ARGUMENTS)
        except NumbaError as error:
            raise _told(cls, name, error) from None
    (compiled,) = entry.overloads.values()
    _entries.append(entry)
    with global_compiler_lock:
        described = compiled.fndesc
        symbol = described.llvm_cfunc_wrapper_name if cls.BY_C else described.llvm_func_name
        return int(compiled.library.get_pointer_to_function(symbol))


def _cached(function: Callable[..., Any], folder: Path) -> Any:
    from numba.core import config

    before: Any = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        return njit(cache=folder.is_dir(), error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before


def _told(cls: type[Any], name: str, error: NumbaError) -> ValueError:
    """Return an error of one line with the place and the reason of a compile error."""
    said = re.sub(r"\x1b\[\d*m", "", str(error))
    found = re.findall(r'File "([^"]+)", line (\d+)', said)
    code = rules_of(cls)[name].__code__
    place = f"{code.co_filename}:{code.co_firstlineno}"
    files = {rule.__code__.co_filename for rule in rules_of(cls).values()}
    for file, line in found[::-1]:
        match = [f for f in files if f.endswith(Path(file).name)]
        if match:
            place = f"{match[0]}:{line}"
            break
    if wrong := re.search(rf"{re.escape(WRONG_TYPE)}, not \w+", said):
        return ValueError(f"{cls.__name__}.{name}: {place}: {wrong[0]}")
    causes = re.findall(
        r"(Unknown attribute .*|Invalid use of .*|No implementation .*|.*rror.*)", said
    )
    cause = causes[-1].strip() if causes else said.strip().splitlines()[0]
    cause = re.sub(r"Ref\((\w+), \w*\)", r"\1", cause)
    return ValueError(
        f"{cls.__name__}.{name}: {place}: does not compile: {cause}; rules use numbers, records "
        "and lists of a fixed size (backend python runs it for debugging)"
    )
