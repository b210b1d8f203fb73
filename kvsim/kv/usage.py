"""Use and waste of KV memory by cause.

The causes are those of the PagedAttention paper's Fig. 2. :class:`KVUsage`, the memory table and
the totals list them in the order of :data:`COLUMNS`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Cause(IntEnum):
    """The use of a KV slot, or the cause of its waste; the numbers are the codes of memory maps."""

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
#: All causes; CACHED memory is part of FREE memory.
COLUMNS = (*WHOLE, Cause.CACHED)


class KVUsage(NamedTuple):
    """KV memory at one instant, in bytes; all fields but ``cached`` sum to the manager's total.

    ``token_states``: slots of live tokens; a shared slot counts once. ``reservation``: reserved
    slots that will be used later. ``internal``: reserved slots that are never or no longer used.
    ``external``: memory allocated beyond the requested slots. ``unallocated``: free memory;
    ``cached`` is its part with reusable content.
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
        """Check that no cause is negative, and that the causes sum to ``total_bytes``.

        Raises
        ------
        RuntimeError
            Naming invariant 9 and both of its sides.
        """
        if min(self) < 0 or sum(self[: len(WHOLE)]) != total_bytes:
            raise RuntimeError(f"invariant 9: {self} does not sum to {total_bytes}")
