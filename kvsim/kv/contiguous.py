"""Contiguous KV: one extent of memory per sequence, reserved as a whole at admission.

These are the baselines of the PagedAttention paper (section 6.1), over a buddy allocator by
default. The rules are in :mod:`kvsim.rules.managers.contiguous`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from kvsim.kv.address_space import AddressSpace, Fit, holes, init_space, largest
from kvsim.kv.manager import ALLOCATORS, KEEPS_NO_PREFIXES, KVCacheConfig
from kvsim.kv.rule_manager import ANSWERS, RuleManager
from kvsim.records.contiguous import Allocations, Reserve
from kvsim.records.kv import CONTIGUOUS, KV
from kvsim.records.memory import Objects
from kvsim.rules.managers.contiguous import allocate_pieces, num_asked_slots, num_reserved_slots

if TYPE_CHECKING:
    from kvsim.records.memory import Memory
    from kvsim.records.request import Request


class ContiguousManager(RuleManager):
    """One contiguous extent per sequence, which never moves and never grows.

    If every layer has a sliding window, an extent is a rolling buffer of at most one window
    (Mistral 7B, arXiv 2310.06825). A subclass sets the reserved slots: by a rule in ``reserves``,
    or by its own :meth:`reserve`.

    Raises
    ------
    ValueError
        If a subclass has neither.
    """

    rules_of = CONTIGUOUS
    default_scheduler = "orca"
    has_block_table = False
    serves_samples = True
    ignores = KEEPS_NO_PREFIXES
    answers = (*ANSWERS, "reserve")
    reserves: ClassVar[Reserve] = Reserve.PYTHON

    def __init__(self, config: KVCacheConfig, *, fit: Fit = "buddy") -> None:
        super().__init__(config)
        if self.reserves == Reserve.PYTHON and not self._reserves_itself:
            raise ValueError(
                f"allocator {type(self).__name__}: set reserves to Reserve.MAX, POW2 or ORACLE, or "
                "define a method reserve(request)"
            )
        self.slot_bytes = config.layout.bytes_per_token
        self.num_slots = config.num_bytes // self.slot_bytes
        self.block_size = config.block_size
        self.num_gpu_blocks = self.num_slots // config.block_size
        self.total_bytes = self.num_slots * self.slot_bytes
        self.window = config.layout.rolling_window
        self.fit = fit

    def reserve(self, request: Request) -> int:
        """Return the slots that each sequence of a request reserves; windows are ignored."""
        return num_reserved_slots(self.sizes, request, int(self.reserves))

    @property
    def _reserves_itself(self) -> bool:
        return type(self).reserve is not ContiguousManager.reserve

    @property
    def _reserve(self) -> Reserve:
        return Reserve.PYTHON if self._reserves_itself else self.reserves

    @property
    def runs_by_rules(self) -> bool:
        return self._reserve != Reserve.PYTHON and super().runs_by_rules

    # -- laying out ----------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> KV:
        """Settings without the memory itself, to check what fits into an empty memory."""
        kv = KV()
        self._set_up(kv)
        return kv

    def _set_up(self, kv: KV) -> None:
        kv.manager, kv.python = self.rules_of, self
        kv.max_model_len = self.config.max_model_len
        kv.has_windows = self.window is not None
        memory = kv.contiguous
        memory.reserve, memory.num_slots = int(self._reserve), self.num_slots
        memory.slot_bytes, memory.window = self.slot_bytes, self.window or 0
        memory.has_samples = self.config.max_num_samples > 1

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        self._set_up(kv)
        self.add_request_blocks(kv, memory, num_request_blocks)
        most = num_request_blocks * self.config.max_num_samples if memory.compiled else 2**20
        init_space(kv.contiguous.space, memory, self.num_slots, self.fit, most)

    def fill_request_blocks(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        new = memory.records(Allocations, stop - first)
        memory.share_out(new, "starts", int, self.config.max_num_samples)
        kv.contiguous.pieces = [*kv.contiguous.pieces, *new] if first else new

    # -- the protocol --------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        asked = num_asked_slots(self.sizes, request)
        if request.num_samples == 1:
            return asked <= largest(self.num_slots, self.fit)
        empty = AddressSpace(self.num_slots, self.fit)
        pieces = Allocations(starts=Objects().ints(request.num_samples))
        return allocate_pieces(empty.space, pieces, request.num_samples, asked)

    def address(self, request: Request) -> tuple[int, int] | None:
        pieces = self.kv.contiguous.pieces[request.own_blocks]
        return pieces.starts[0], pieces.size

    def check_integrity(self) -> None:
        memory, held = self.kv.contiguous, self.held_requests()
        pieces = [(r, memory.pieces[h]) for r, h in held]
        spans = [(p.starts[s], p.size) for r, p in pieces for s in range(r.num_samples)]
        expected = 0
        for start, size in sorted([*spans, *holes(memory.space)]):
            if start != expected:
                raise RuntimeError(f"invariant 4: slot {start} follows slot {expected}")
            expected = start + size
        if expected != self.num_slots:
            raise RuntimeError(f"invariant 2: {expected} slots found of {self.num_slots}")
        self.check_filled()
        self.usage.check(self.total_bytes)


@ALLOCATORS.register("contiguous-max")
class ContiguousMax(ContiguousManager):
    """Reserve max_model_len for every request: Orca (Max)."""

    reserves = Reserve.MAX


@ALLOCATORS.register("contiguous-pow2")
class ContiguousPow2(ContiguousManager):
    """Reserve the output length rounded up to a power of two: Orca (Pow2)."""

    reserves = Reserve.POW2


@ALLOCATORS.register("contiguous-oracle")
class ContiguousOracle(ContiguousManager):
    """Reserve the true output length: Orca (Oracle)."""

    reserves = Reserve.ORACLE
