"""Rules over records of their own, outside a replica, which run as Python or compiled.

The rules of a package may call each other. They use no records of a replica, so their machine code
stays valid after an edit of the rules of replicas.
"""

from __future__ import annotations

import ctypes
import inspect
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from kvsim.compiled.cache import cache_folder
from kvsim.compiled.machine import CHECKED, address_in, check_fault, library_of, say
from kvsim.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

#: A function over three words.
ENTRY = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)


@cache
def compiled(rule: Callable[..., int]) -> Callable[..., int]:
    """Return a function that runs the machine code of a rule, which is compiled or loaded.

    Parameters
    ----------
    rule : takes at most three records or ints; it calls only rules of its own package, and rules
        that its modules import
    """
    modules = _modules_of(rule.__module__.rpartition(".")[0])
    name = f"{rule.__module__}.{rule.__name__}"
    library = library_of(name, _folder_of(modules), lambda: _text_of(rule, name, modules))
    entry = ENTRY(address_in(library, name))

    def call(*given: Any) -> int:
        words = [one if isinstance(one, int) else one.address for one in given]
        found: int = entry(*words, *[0] * (3 - len(words)))
        check_fault()
        return found

    return call


def _modules_of(package: str) -> list[ModuleType]:
    folders = import_module(package).__path__
    return [import_module(found.name) for found in iter_modules(folders, package + ".")]


def _folder_of(modules: list[ModuleType]) -> Path:
    """Return the cache folder of rules: it depends on their sources, and on those they import."""
    folders = {Path(str(module.__file__)).parent: None for module in modules}
    for module in modules:
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__.startswith("kvsim.rules."):
                folders[Path(inspect.getfile(function)).parent] = None
    return cache_folder([*folders, Path(__file__).parent])


def _text_of(rule: Callable[..., int], name: str, modules: list[ModuleType]) -> str:
    """Translate a rule, and those that it calls."""
    from kvsim.compiled.translation.unit import Unit  # loading what is compiled needs none of it

    say(f"compiling {rule.__name__} once ...")
    records = {
        name: one
        for module in modules
        for name, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, Record) and one is not Record
    }
    unit = Unit(name, {}, records, lambda rule, _: rule, lambda _: False, checked=CHECKED)
    return unit.entry_of(name, rule)
