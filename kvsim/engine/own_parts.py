"""Reports of wrong results of a user's rules, and of errors in the code of a user's part."""

from __future__ import annotations

from bdb import BdbQuit
from contextlib import contextmanager
from traceback import walk_tb
from typing import TYPE_CHECKING

from kvsim.cost.model import check_times
from kvsim.kv.allocator_rules import check_rooms
from kvsim.parametric import PART_MODULES
from kvsim.records.record import NONE
from kvsim.rules.own_order import PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.engine.setup import Parts
    from kvsim.records.engine import Replica


def check_parts(state: Replica, setup: Parts) -> None:
    """Refuse a replica's run in which a user's part returned a wrong value.

    Raises
    ------
    ValueError
        Naming the part, the first wrong value, and what is allowed.
    """
    check_times(state.cost, setup.cost_model)
    check_rooms(state.kv.own, setup.allocator.base)
    order, pool = state.order, state.kv.pool
    if order.wrong != NONE:
        rule = "priority" if order.wrong == PRIORITY else "victim"
        raise ValueError(
            f"scheduler {setup.scheduler}: {rule} returned {order.returned:g}: must be a number"
        )
    if pool.part.wrong != NONE:
        raise ValueError(
            f"eviction policy {setup.allocator.params.get('eviction')}: evict returned "
            f"{pool.part.returned:.0f}: must be a block that was inserted, and neither removed "
            "nor evicted since"
        )


@contextmanager
def errors_in_parts() -> Iterator[None]:
    """Report an error in the code of a user's part as one line, with file and line.

    Raises
    ------
    ValueError
        With that error, and its traceback, as the cause.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        first = error.__cause__ or error  # SimPy raises a copy
        frames = list(walk_tb(first.__traceback__))
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
        own = [
            place for place, module in zip(frames, modules, strict=True) if module in PART_MODULES
        ]
        is_check = isinstance(error, RuntimeError | AssertionError)
        if not own or (is_check and modules[-1].startswith("kvsim.")):  # it needs no explanation
            raise
        code, line = own[-1][0].f_code, own[-1][1]
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        place = f"{code.co_qualname}: {code.co_filename}:{line}"
        if isinstance(first, BdbQuit):
            raise ValueError(f"{place}: quit in the debugger") from None
        raise ValueError(f"{place}: {said}") from first
