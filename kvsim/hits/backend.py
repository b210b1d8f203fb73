"""The backends of the rules: memory for their records, and functions that call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.records.memory import Flat, Memory, Objects

if TYPE_CHECKING:
    from collections.abc import Callable


class Backend(NamedTuple):
    """A way to run rules.

    Attributes
    ----------
    memory : makes the memory of records, which it keeps alive
    rule : returns a function that runs a rule over records in such memory
    """

    memory: Callable[[], Memory]
    rule: Callable[[Callable[..., int]], Callable[..., int]]


def backend_of(name: str) -> Backend:
    """Return the backend that compiles rules, or the one that runs them as Python."""
    if name == "python":
        return Backend(Objects, lambda rule: rule)
    from kvsim.compiled.functions import compiled

    return Backend(Flat, compiled)


def flags(memory: Memory, count: int) -> Any:
    """Make a list of zeros of 8 bits."""
    return memory.list_of(np.zeros(count, np.int8))
