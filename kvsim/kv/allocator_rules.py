"""A user's allocator as rules, which run as Python or compiled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import Parameter
from typing import TYPE_CHECKING, ClassVar

from kvsim.kv.manager import KEEPS_NO_PREFIXES, KVCacheConfig, KVCacheManager
from kvsim.kv.rule_manager import RuleManager
from kvsim.own_rules.part import RulePart, per_replica
from kvsim.records.kv import OWN
from kvsim.records.memory import assign, head
from kvsim.records.record import NONE
from kvsim.records.request import Request

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory
    from kvsim.records.part import OwnMemory


class AllocatorRules(RulePart, ABC):
    """Base of a user's allocator that runs at the speed of the built-in ones.

    A subclass declares parameters and state as fields, and defines ``allocate`` and ``free``.
    kvsim counts the slots, applies the watermark, and requests lookahead slots. Such an allocator
    has no prefix cache, and it never frees tokens that have left a sliding window. Moving a request
    takes no time, and external fragmentation is not reported: only refusals show it.

    Attributes
    ----------
    num_blocks, block_size : blocks of the memory, and slots (tokens) of a block

    Raises
    ------
    ValueError
        For a field that cannot be laid out, an unknown parameter, or a value of the wrong type.

    Examples
    --------
    A user's file, such as ``docs/examples/parts/two_sizes.py``::

        from kvsim.plugins.allocation import AllocatorRules, Request, per_replica, per_request

        class Half(AllocatorRules):
            used: int = per_replica()
            blocks: list[int] = per_request()

            def allocate(self, request: Request, num_tokens: int) -> int:
                needed = (num_tokens + self.block_size - 1) // self.block_size
                more = needed - self.blocks[request.own_blocks]
                if self.used + more > self.num_blocks // 2:
                    return 0
                self.used += more
                self.blocks[request.own_blocks] = needed
                return needed * self.block_size

            def free(self, request: Request) -> None:
                self.used -= self.blocks[request.own_blocks]
                self.blocks[request.own_blocks] = 0
    """

    OPERATIONS: ClassVar[tuple[str, ...]] = ("allocate", "free")
    RETURNS: ClassVar[dict[str, type]] = {"allocate": int}
    TAKES: ClassVar[dict[str, type]] = {"allocate": Request, "free": Request}
    SIZES: ClassVar[tuple[str, ...]] = ("block", "request", "replica")
    BEFORE: ClassVar[tuple[Parameter, ...]] = (
        Parameter("config", Parameter.POSITIONAL_ONLY, annotation=KVCacheConfig),
    )

    num_blocks: int = per_replica()
    block_size: int = per_replica()

    def __init__(self, config: KVCacheConfig | None = None, /, **parameters: float) -> None:
        super().__init__(**parameters)
        self.config = config

    @abstractmethod
    def allocate(self, request: Request, num_tokens: int) -> int:
        """Make room for a request's first ``num_tokens`` tokens; return its room in tokens.

        It is called for a request without memory, and when a request needs more than its room. A
        result below ``num_tokens`` means a refusal; the state must then be unchanged.
        """

    @abstractmethod
    def free(self, request: Request) -> None:
        """Free all memory of a request."""


KVCacheManager.register(AllocatorRules)  # type: ignore[type-abstract]  # OwnManager adapts it


def check_rooms(own: OwnMemory, name: str) -> None:
    """Check the numbers of slots that a user's rules have returned.

    Raises
    ------
    ValueError
        If a number was negative, or the sum exceeded the memory. Names the allocator.
    """
    if own.part.wrong != NONE:
        raise ValueError(
            f"allocator {name}: allocate returned {own.part.returned:.0f}: must be the number of "
            "tokens with room, 0 or more"
        )
    if own.is_overdrawn:
        raise ValueError(f"allocator {name} allocated more slots than its {own.num_slots:,}")


class OwnManager(RuleManager):
    """The manager of KV memory that a user's rules allocate.

    Parameters
    ----------
    config : the memory and the settings
    rules : the rules; each replica has its own copy
    """

    rules_of = OWN
    ignores = KEEPS_NO_PREFIXES

    def __init__(self, config: KVCacheConfig, rules: AllocatorRules) -> None:
        super().__init__(config)
        self._rules = rules
        self.block_size, self.slot_bytes = config.block_size, config.layout.bytes_per_token
        block_bytes = self.block_size * self.slot_bytes
        self.num_gpu_blocks = config.num_bytes // block_bytes
        self.total_bytes = self.num_gpu_blocks * block_bytes

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        kv.manager = self.rules_of
        assign(kv, self.config)
        kv.enable_prefix_caching = False
        own, blocks = kv.own, self.num_gpu_blocks
        own.block_size, own.slot_bytes = self.block_size, self.slot_bytes
        own.num_slots = blocks * self.block_size
        own.num_spared = self.config.spared(blocks) * self.block_size
        self.add_request_blocks(kv, memory, num_request_blocks)
        rules, sizes = self._rules, {"block": blocks, "request": num_request_blocks}
        given = {name: getattr(rules, name) for name in rules.parameters()}
        made = type(rules)(**given).init_state(own.part, memory, sizes)
        made.num_blocks, made.block_size = blocks, self.block_size
        own.part.python = made

    def fill_request_blocks(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        kv.own.rooms = memory.list_of([*head(kv.own.rooms, first), *[0] * (stop - first)])
        if first and not memory.compiled:
            kv.own.part.python.resize("request", stop)

    def fits(self, request: Request) -> bool:
        alone, one = OwnManager(self.config, self._rules), Request(0, 0.0, 1, 1)
        one.num_prompt_tokens = one.num_tokens = request.num_prompt_tokens
        one.max_tokens, one.end = request.max_tokens, request.end
        has_room = alone.allocate_slots(one, one.num_prompt_tokens)
        if has_room:
            one.num_computed_tokens = one.num_prompt_tokens
            has_room = alone.allocate_slots(one, one.max_slots - one.num_prompt_tokens)
        check_rooms(alone.kv.own, type(self._rules).__name__)
        return has_room

    def check_integrity(self) -> None:
        own, held = self.kv.own, self.held_requests()
        rooms = sum(own.rooms[h] for _, h in held)
        check_rooms(own, type(self._rules).__name__)
        if rooms != own.num_allocated:
            raise RuntimeError(
                f"invariant 2: requests have {rooms} slots, {own.num_allocated} are counted"
            )
        if any(r.num_filled > own.rooms[h] for r, h in self.check_filled()):
            raise RuntimeError("a request has more tokens than slots")
        self.usage.check(self.total_bytes)
