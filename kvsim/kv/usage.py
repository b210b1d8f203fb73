"""Use and waste of KV memory: the causes and their sums.

The causes are those of the PagedAttention paper's Fig. 2. The order of :data:`COLUMNS` is the order
of every list of them: of :class:`KVUsage`, of the memory table, of the totals.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Cause(IntEnum):
    """The use of a KV slot, or the cause of its waste; the codes are those of memory maps."""

    FREE = 0
    TOKEN_STATES = 1
    RESERVATION = 2
    INTERNAL = 3
    EXTERNAL = 4
    CACHED = 5

    @property
    def column(self) -> str:
        """The cause's column in the memory table."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """The cause's name in tables and figures."""
        return self.column.replace("_", " ")

    @property
    def summary_key(self) -> str:
        """The cause's key in a summary's ``kv_cache``."""
        wasted = self in (Cause.INTERNAL, Cause.EXTERNAL)
        return f"{self.column}_fragmentation" if wasted else self.column


#: Causes of memory that is held.
HELD = (Cause.TOKEN_STATES, Cause.RESERVATION, Cause.INTERNAL, Cause.EXTERNAL)
#: Causes that sum to all memory.
WHOLE = (*HELD, Cause.FREE)
#: All causes; cached memory is a part of the unallocated one.
COLUMNS = (*WHOLE, Cause.CACHED)


class KVUsage(NamedTuple):
    """KV memory at one instant, in bytes; the first five sum to the manager's total.

    ``token_states``: slots of live tokens, a shared slot once. ``reservation``: reserved and used
    later. ``internal``: reserved and never used, or no longer used. ``external``: allocated beyond
    the request. ``unallocated``: free; ``cached`` is the part of it with reusable blocks.
    """

    token_states: int
    reservation: int
    internal: int
    external: int
    unallocated: int
    cached: int

    @property
    def held(self) -> tuple[int, ...]:
        """Bytes of each cause in :data:`HELD`."""
        return self[: len(HELD)]

    def check(self, total_bytes: int) -> None:
        """Check that nothing is negative and that all memory has a cause.

        Raises
        ------
        RuntimeError
            Naming invariant 9 and both sides of it.
        """
        if min(self) < 0 or sum(self[: len(WHOLE)]) != total_bytes:
            raise RuntimeError(f"invariant 9: {self} does not sum to {total_bytes}")
