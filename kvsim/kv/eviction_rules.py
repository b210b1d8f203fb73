"""A user's eviction policy as rules, which run as Python or compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kvsim.kv.eviction import EvictionPolicy
from kvsim.own_rules.part import CLOCK, GOES_ON, HINT, RulePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.records.memory import Memory
    from kvsim.records.paged import BlockPool


class EvictionRules(RulePart, EvictionPolicy):
    """Base of a user's eviction policy that runs at the speed of the built-in ones.

    A subclass declares parameters and state as fields, and defines ``insert``, ``remove`` and
    ``evict``, and ``cached`` and ``hit`` if it needs them. The methods may use numbers and lists of
    a fixed size, and call functions of their file; :mod:`kvsim.plugins.eviction` has a linked list.
    ``self.now`` is the replica's clock in seconds. A state field ``num_blocks`` is set to the
    usable blocks of the pool plus one, the null block; it is 0 outside a replica.

    With ``tracks_sessions``, ``insert`` can read two values of the request that frees the block:
    ``self.goes_on``, 1 if a later request of its session follows, else 0 (or the number that
    :meth:`kept` returns), and ``self.hint``, its ``hint_priority``.

    Raises
    ------
    ValueError
        For a field that cannot be laid out, an unknown parameter, or a value of the wrong type.

    Examples
    --------
    A user's file, such as ``docs/examples/parts/ttl_lru.py``::

        from kvsim.plugins.eviction import EvictionRules, Links, Queue, append, per_block
        from kvsim.plugins.eviction import per_replica, push_front, remove

        class Newest(EvictionRules):
            order: Queue = per_replica(Queue)
            links: list[Links] = per_block(Links)

            def insert(self, block_id: int) -> None:
                push_front(self.order, self.links, block_id)

            def remove(self, block_id: int) -> None:
                remove(self.order, self.links, block_id)

            def evict(self) -> int:
                block_id = self.order.head
                remove(self.order, self.links, block_id)
                return block_id
    """

    OPERATIONS: ClassVar[tuple[str, ...]] = ("insert", "remove", "evict", "cached", "hit")
    RETURNS: ClassVar[dict[str, type]] = {"evict": int}

    # Not parameters; type checkers would require them without a default.
    pool: BlockPool = None  # type: ignore[assignment]  # the pool of its blocks
    laid_out: Any = None  # the instance with state in the pool's memory

    @property
    def runs_by_rules(self) -> bool:
        return True

    @property
    def goes_on(self) -> float:
        """The value of :meth:`kept` for the request that frees a block.

        By default it is 1 if a later request of the session follows, else 0.
        """
        return self.pool.goes_on

    @property
    def hint(self) -> float:
        """The ``hint_priority`` of the request that frees a block, -1 for none."""
        return self.pool.hint

    def prepare(self, pool: BlockPool, memory: Memory) -> Any:
        made = self.init_state(pool.part, memory, {"block": len(pool.blocks)})
        made.pool = pool
        if "num_blocks" in self.kinds():
            made.num_blocks = len(pool.blocks)
        view = getattr(made, "view", None)
        if view is not None:
            flat: Any = pool
            for name, field in ((GOES_ON, "goes_on"), (HINT, "hint")):
                setattr(view, name, flat.address + flat._record.dtype().fields[field][1])
        self.laid_out = made
        return made

    def set_time(self, clock: Callable[[], float], state: Any) -> None:
        self.clock = self.laid_out.clock = clock
        view = getattr(self.laid_out, "view", None)
        if view is not None:
            setattr(view, CLOCK, state.address + state._record.dtype().fields["clock"][1])

    def __len__(self) -> int:
        return self.pool.num_cached

    def __iter__(self) -> Iterator[int]:
        twin = self.twin()
        for _ in range(len(self)):
            yield int(twin.evict())
