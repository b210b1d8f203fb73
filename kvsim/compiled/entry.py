"""The entries of compiled code: the rules of each variant, and those of routers, by address."""

from __future__ import annotations

import ctypes
import hashlib
from inspect import getmodule, getsource
from typing import TYPE_CHECKING, Any

from kvsim.compiled.cache import cache_folder
from kvsim.compiled.machine import CHECKED, address_in, check_fault, file_of, library_of, say
from kvsim.compiled.translate import unit_of
from kvsim.compiled.translation.kinds import UntranslatableError
from kvsim.compiled.variants import variant_of
from kvsim.dispatch import FEATURES, KINDS
from kvsim.rules import engine

if TYPE_CHECKING:
    from collections.abc import Callable

#: A function over three words, called with Python's lock held.
ENTRY = ctypes.PYFUNCTYPE(*[ctypes.c_int64] * 4)

FOLDER = cache_folder()


def serve(state: Any) -> Callable[[int, int], int]:
    """Return a function that runs the compiled rules on a replica in flat memory."""
    entry, address = ENTRY(_address(variant_of(state))), state.address

    def call(command: int, max_steps: int) -> int:
        found: int = entry(address, command, max_steps)
        check_fault()
        return found

    return call


def address_of(state: Any) -> int:
    """Return the address of the machine code of a replica's rules; 0 if it may raise errors."""
    return 0 if CHECKED else _address(variant_of(state))


def _address(variant: str) -> int:
    name = f"serve-{variant or 'general' + outside()}"
    if not file_of(name, FOLDER).exists():
        say("compiling the code of this run, once (up to half a minute) ...")
    return address_in(library_of(name, FOLDER, lambda: _text(variant, name)), name)


def _text(variant: str, name: str) -> str:
    """Translate a variant; a class from outside of kvsim may have a rule that is none."""
    try:
        return unit_of(variant).entry_of(name, engine.serve)
    except UntranslatableError as error:
        if not outside():
            raise
        raise ValueError(f"{error} does not compile (backend python runs it)") from None


def outside() -> str:
    """Return a name for the classes with rules that no file of kvsim defines; empty for none."""
    found = [*KINDS.outside(), *FEATURES.outside()]
    text = "".join(getsource(getmodule(one) or one) for one in found)
    return f"-{hashlib.sha256(text.encode()).hexdigest()[:16]}" if found else ""


def router_address(rule: Callable[..., int]) -> int:
    """Return the address of a router rule's machine code; 0 if it has none."""
    if CHECKED or not rule.__module__.startswith("kvsim.rules."):
        return 0
    name = f"router-{rule.__name__}"
    first = 2 - rule.__code__.co_argcount  # the router's state is the first word
    library = library_of(name, FOLDER, lambda: unit_of("").entry_of(name, rule, first))
    return address_in(library, name)
