"""Plain functions over arrays, which run as Python or compiled.

The functions of a package may call each other. They use no records of a replica, so their machine
code stays valid after an edit of the rules.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from numba import njit
from numba.extending import overload

from kvsim.compiled.cache import cache_folder, caching_in

if TYPE_CHECKING:
    from collections.abc import Callable

#: Numba's options for the functions, as for rules.
OPTIONS: Any = {"error_model": "numpy"}


@cache
def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that is compiled or loaded at its first call, for the types of that call.

    Parameters
    ----------
    function : plain function over numbers and NumPy arrays; it calls only NumPy, its own
        package, and rules that its modules import
    """
    folder = _register(function.__module__.rpartition(".")[0])
    with caching_in(folder):
        entry: Any = njit(cache=True, **OPTIONS)(function)
    if hasattr(entry, "stats"):  # a plain function under NUMBA_DISABLE_JIT
        name = function.__name__
        if not any(Path(entry.stats.cache_path).glob(f"*.{name}-*.nbi")):
            said = f"kvsim: compiling {name} once, for a few seconds ..."
            print(said, file=sys.stderr, flush=True)  # noqa: T201 - a first run is silent
    return entry


@cache
def _register(package: str) -> Path:
    """Make the functions of a package callable from compiled code; return its cache folder.

    The rules that its modules import from elsewhere become callable, too.
    """
    folders = [Path(folder) for folder in import_module(package).__path__]
    others = [Path(__file__).parent]
    modules = iter_modules(map(str, folders), package + ".")
    for module in (import_module(found.name) for found in modules):
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                _make_callable(function)
            elif function.__module__.startswith("kvsim.rules."):
                _make_callable(function)
                others.append(Path(inspect.getfile(function)).parent)
    return cache_folder([*folders, *dict.fromkeys(others)])


def _make_callable(function: Any) -> None:
    overload(function, jit_options=OPTIONS, strict=False)(lambda *args: function)
