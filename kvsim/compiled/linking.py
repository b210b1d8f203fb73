"""Linking of compiled rules only once, at the entry, instead of in each rule that calls others.

Numba makes a library for every function, links all direct and indirect callees into it, optimises
the whole and emits machine code. For some two hundred rules that call each other eight levels deep,
this is ten times the necessary work. Here a rule's library holds only the rule. Only the entry's
library is linked with all rules, optimised, and turned into machine code (D55).
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numba._dynfunc import make_function
from numba.core import codegen, event
from numba.core.cpu import CPUContext

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def linked_at(*entries: str) -> Iterator[None]:
    """Inside the block, link only the libraries of the named functions with their callees."""
    kind: Any = codegen.CPUCodeLibrary
    context: Any = CPUContext
    finalize, executable, broadcast = kind.finalize, context.get_executable, event.broadcast

    def finalize_once(library: Any) -> None:
        if library.name not in entries:
            library._finalized = True
            return
        called = library._linking_libraries
        library._linking_libraries = _all_called(called)
        finalize(library)
        library._linking_libraries = called

    def executable_or_name(self: Any, library: Any, function: Any, env: Any) -> Any:
        if library.name in entries:
            return executable(self, library, function, env)
        # Numba needs an object for the rule; it is never called, as there is no Python wrapper.
        return make_function(
            function.lookup_module(), function.qualname, function.qualname, 0, env, (library,)
        )

    kind.finalize = finalize_once
    context.get_executable = executable_or_name
    event.broadcast = _silent  # else each of 140,000 events calls a listener per nested rule
    collects = gc.isenabled()
    gc.disable()  # collecting takes an eighth of the time, and nearly all objects stay alive
    try:
        yield
    finally:
        if collects:
            gc.enable()
        kind.finalize = finalize
        context.get_executable = executable
        event.broadcast = broadcast


def _silent(event: Any) -> None:
    pass


def _all_called(libraries: list[Any]) -> list[Any]:
    """Return libraries and their callees, each once and after all its callers.

    The linker takes from a library only the functions that libraries before it call.
    """
    callees_first: dict[Any, None] = {}

    def visit(library: Any) -> None:
        if library not in callees_first:
            for called in library._linking_libraries:
                visit(called)
            callees_first[library] = None

    for library in libraries:
        visit(library)
    return list(callees_first)[::-1]
